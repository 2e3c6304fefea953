//! `libremora_sysfs.so`: shows Remora's card to programs that read `/sys/class/infiniband`
//! themselves, instead of asking libibverbs.
//!
//! Loaded by `LD_PRELOAD`, it replaces the C library's calls that take a path ([`calls`]). A path
//! below one of a few folders ([`place`]) is looked up in a folder that Remora's library has made,
//! with the same files in it. Every other path is passed on unchanged.
//!
//! This code runs inside of any program, at any moment: before `main`, between `fork` and `exec`,
//! within a memory allocator. So it never allocates, locks or panics.

mod calls;
mod next;
mod place;
