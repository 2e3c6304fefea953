//! Kernels for Remora's card, written in Rust and loaded as WebAssembly.
//!
//! A kernel is a function that [`kernel!`] exports. It runs once for each call, on the card of the
//! node that has loaded it. It can use what this crate offers: the call and its payload, granted
//! registered memory, and the way back to the requester. No function here blocks the card: a
//! kernel that has to wait is suspended.
//!
//! ```text
//! cargo build --release --example get
//! remora kernel load NODE target/wasm32-unknown-unknown/release/examples/get.wasm --opcode 0x100
//! ```
//!
//! At the start of a call, the globals and the memory of a module are either as the last call on
//! the same queue pair left them, or as the module defines them. State that must last belongs into
//! registered memory.
#![no_std]
#![warn(missing_docs)]

mod imports {
    #[link(wasm_import_module = "remora")]
    unsafe extern "C" {
        pub fn call(into: *mut u8) -> u32;
        pub fn params(into: *mut u8, len: usize) -> i32;
        pub fn payload(into: *mut u8, len: usize) -> i32;
        pub fn read(addr: u64, into: *mut u8, len: usize) -> u32;
        pub fn write(addr: u64, from: *const u8, len: usize) -> u32;
        pub safe fn fetch(addr: u64, len: u32) -> u32;
        pub safe fn send_memory(addr: u64, len: u32) -> u32;
        pub fn output(from: *const u8, len: usize) -> u32;
        pub fn send_to(qpn: u32, rkey: u32, addr: u64, from: *const u8, len: usize) -> u32;
        pub safe fn sent() -> u32;
        pub safe fn yield_now() -> u32;
        pub fn granted(index: u32, into: *mut u8) -> u32;
        pub fn passing(into: *mut u8) -> u32;
    }
}

/// Why a kernel ends without success: the code that its requester gets. Codes from 128 on are free
/// for kernels to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u8);

impl Status {
    /// The parameters are malformed.
    pub const BAD_PARAMS: Status = Status(2);
    /// The requested item does not exist.
    pub const NOT_FOUND: Status = Status(3);
    /// The result does not fit the requester's buffer.
    pub const TOO_LONG: Status = Status(4);
    /// The memory was not granted, is deregistered or cannot be reached.
    pub const ACCESS: Status = Status(5);
    /// The invocation has used up its budget.
    pub const BUDGET: Status = Status(6);
    /// The object was inconsistent at every reading.
    pub const INCONSISTENT: Status = Status(7);
    /// The kernel itself failed.
    pub const TRAP: Status = Status(8);
    /// The kernel needs more memory than its limit.
    pub const MEMORY: Status = Status(9);
}

/// The result of a kernel, and of the functions of this crate that can fail. A kernel may return a
/// function's error as its own status.
pub type Result<T = ()> = core::result::Result<T, Status>;

/// Exports a function `fn() -> Result` as the module's kernel.
#[macro_export]
macro_rules! kernel {
    ($function:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn kernel() -> u32 {
            match $function() {
                Ok(()) => 0,
                Err($crate::Status(code)) => u32::from(code),
            }
        }

        /// A panic ends the call with [`Status::TRAP`]($crate::Status::TRAP).
        #[panic_handler]
        fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
            core::arch::wasm32::unreachable()
        }
    };
}

/// Exports a function `fn() -> Result<Verdict>` as the module's tap. The card calls it for each
/// payload of the WRITEs that the module is bound to, as the payload passes. The tap takes the
/// payload with [`payload`], reads and writes granted memory, and puts out, with [`output`], the
/// bytes to write instead. It can use no other functions. A tap that fails is stopped, and later
/// WRITEs pass unchanged.
///
/// One instance sees the whole stream and keeps its globals as long as it is bound. Calls of the
/// module's kernel do not see these globals: results for calls belong into granted memory.
#[macro_export]
macro_rules! tap {
    ($function:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn tap() -> i32 {
            match $function() {
                Ok(verdict) => verdict as i32,
                Err($crate::Status(code)) => -i32::from(code),
            }
        }
    };
}

/// What happens to a payload that has passed a [`tap!`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The payload is written at its destination.
    Pass = 0,
    /// The tap's output is written there instead; it may be shorter.
    Replace = 1,
    /// Nothing is written.
    Take = 2,
}

/// A payload that passes through a tap.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Passing {
    /// Its destination address, from the WRITE.
    pub addr: u64,
    /// The queue pair that received or sends it.
    pub qpn: u32,
    /// Its length in bytes, usually that of one packet's payload.
    pub len: u32,
    /// Bytes of the message before this payload.
    pub offset: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// Not zero if the payload was sent before and is sent again; only where it is sent.
    pub again: u32,
    reserved: u32,
}

/// The payload that passes. Only in a [`tap!`].
pub fn passing() -> Passing {
    let mut passing = Passing::default();
    // SAFETY: 32 bytes are written, which is what a `Passing` has, and any bytes make one.
    unsafe { imports::passing((&raw mut passing).cast()) };
    passing
}

/// A granted region.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Granted {
    /// Its first address.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Not zero if the kernel may write it.
    pub writable: u64,
}

/// The granted region with index `index`, which counts from 0.
///
/// # Errors
/// [`Status::NOT_FOUND`] if there is no such grant, [`Status::ACCESS`] if the region is gone.
pub fn granted(index: u32) -> Result<Granted> {
    let mut granted = Granted::default();
    // SAFETY: 24 bytes are written, which is what a `Granted` has, or none; any bytes make one.
    status(unsafe { imports::granted(index, (&raw mut granted).cast()) })?;
    Ok(granted)
}

/// A call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Call {
    /// The queue pair that the call came by.
    pub qpn: u32,
    /// The most bytes of results that the requester takes.
    pub max_len: u32,
    /// The op-code of the call.
    pub opcode: u64,
    /// The cookie that the requester chose for the call.
    pub cookie: u64,
    /// The length of the parameters in bytes.
    pub params_len: u32,
    reserved: u32,
}

/// The call that this invocation answers.
pub fn call() -> Call {
    let mut call = Call::default();
    // SAFETY: 32 bytes are written, which is what a `Call` has, and any bytes make one.
    unsafe { imports::call((&raw mut call).cast()) };
    call
}

fn status(code: u32) -> Result {
    if code == 0 { Ok(()) } else { Err(Status(code as u8)) }
}

fn length(code: i32) -> Result<usize> {
    usize::try_from(code).map_err(|_| Status(code.unsigned_abs() as u8))
}

/// Copies the parameters, as far as they fit. Returns the length of all of them in bytes.
pub fn params(into: &mut [u8]) -> Result<usize> {
    // SAFETY: at most `len` bytes are written.
    length(unsafe { imports::params(into.as_mut_ptr(), into.len()) })
}

/// The parameters of a kernel that takes exactly `N` bytes of them.
///
/// # Errors
/// [`Status::BAD_PARAMS`] if they are more or fewer.
pub fn params_exact<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    if params(&mut bytes)? == N { Ok(bytes) } else { Err(Status::BAD_PARAMS) }
}

/// Waits for payload and copies as much of it as fits. Returns the number of bytes; 0 at the end.
pub fn payload(into: &mut [u8]) -> Result<usize> {
    // SAFETY: at most `len` bytes are written.
    length(unsafe { imports::payload(into.as_mut_ptr(), into.len()) })
}

/// Reads granted memory, at most a megabyte at a time.
pub fn read(addr: u64, into: &mut [u8]) -> Result {
    // SAFETY: `len` bytes are written, or none.
    status(unsafe { imports::read(addr, into.as_mut_ptr(), into.len()) })
}

/// Writes granted memory, at most a megabyte at a time.
pub fn write(addr: u64, from: &[u8]) -> Result {
    // SAFETY: `len` bytes are read.
    status(unsafe { imports::write(addr, from.as_ptr(), from.len()) })
}

/// Appends granted memory to the results, as it is now.
pub fn fetch(addr: u64, len: u32) -> Result {
    status(imports::fetch(addr, len))
}

/// Appends granted memory to the results without a copy: the card reads it when it sends it.
pub fn send_memory(addr: u64, len: u32) -> Result {
    status(imports::send_memory(addr, len))
}

/// Appends bytes to the results.
pub fn output(from: &[u8]) -> Result {
    // SAFETY: `len` bytes are read.
    status(unsafe { imports::output(from.as_ptr(), from.len()) })
}

/// Writes bytes into a peer's memory, on a queue pair of the same protection domain.
pub fn send_to(qpn: u32, rkey: u32, addr: u64, from: &[u8]) -> Result {
    // SAFETY: `len` bytes are read.
    status(unsafe { imports::send_to(qpn, rkey, addr, from.as_ptr(), from.len()) })
}

/// Waits until the peers have acknowledged all that [`send_to`] has sent.
pub fn sent() -> Result {
    status(imports::sent())
}

/// Lets other invocations run first.
pub fn yield_now() -> Result {
    status(imports::yield_now())
}
