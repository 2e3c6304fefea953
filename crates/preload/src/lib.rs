//! `libremora_sysfs.so`: shows Remora's card to programs that read `/sys/class/infiniband`
//! themselves, instead of asking libibverbs.
//!
//! Loaded by `LD_PRELOAD`, it stands before the C library's calls that take a path ([`calls`]).
//! A path below one of a few folders ([`place`]) is looked up in a folder of ours instead, which
//! has the same files; every other path goes on at once, untouched.
//!
//! It runs inside of foreign programs, at moments of their choice: before `main`, between `fork`
//! and `exec`, within a memory allocator. So nothing here allocates, locks or panics.

mod calls;
mod next;
mod place;
