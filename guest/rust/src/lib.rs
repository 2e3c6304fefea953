//! Kernels for Remora's card, written in Rust and loaded as WebAssembly.
//!
//! A kernel is a function that [`kernel!`] exports. It runs on the card of the node that it was
//! loaded into, once for each call, and reaches what this crate offers: the call and its payload,
//! registered memory that it was granted, and the way back to the requester. Nothing here blocks
//! the card: whoever has to wait is suspended.
//!
//! ```text
//! cargo build --release --example get
//! remora kernel load NODE target/wasm32-unknown-unknown/release/examples/get.wasm --opcode 0x100
//! ```
//!
//! Globals and memory of a module may be as the last call by the same queue pair left them, or as
//! they were in the beginning. What is to last belongs into registered memory.
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
    }
}

/// Why a kernel ends without success: the code that its requester reads. Those from 128 on are
/// for kernels' own use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u8);

impl Status {
    /// The parameters are malformed.
    pub const BAD_PARAMS: Status = Status(2);
    /// What was looked for is not there.
    pub const NOT_FOUND: Status = Status(3);
    /// The result does not fit the requester's buffer.
    pub const TOO_LONG: Status = Status(4);
    /// Memory that was not granted, is deregistered or cannot be reached.
    pub const ACCESS: Status = Status(5);
    /// The invocation took more work than it may.
    pub const BUDGET: Status = Status(6);
    /// The object was inconsistent at every re-read.
    pub const INCONSISTENT: Status = Status(7);
    /// The kernel itself failed.
    pub const TRAP: Status = Status(8);
    /// More memory than the kernel may have.
    pub const MEMORY: Status = Status(9);
}

/// What a kernel returns.
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

/// A call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Call {
    /// The queue pair that it came by.
    pub qpn: u32,
    /// How many bytes of results the requester takes.
    pub max_len: u32,
    /// The op-code it was called by.
    pub opcode: u64,
    /// The requester's cookie.
    pub cookie: u64,
    /// Bytes of parameters.
    pub params_len: u32,
    reserved: u32,
}

/// The call that this kernel answers.
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

/// Copies the beginning of the parameters; returns the length of all of them.
pub fn params(into: &mut [u8]) -> Result<usize> {
    // SAFETY: at most `len` bytes are written.
    length(unsafe { imports::params(into.as_mut_ptr(), into.len()) })
}

/// The parameters of a kernel that takes `N` bytes of them.
///
/// # Errors
/// [`Status::BAD_PARAMS`] if they are more or fewer.
pub fn params_exact<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    if params(&mut bytes)? == N { Ok(bytes) } else { Err(Status::BAD_PARAMS) }
}

/// Waits for payload, and copies as much of what is there as fits. Zero bytes are the end.
pub fn payload(into: &mut [u8]) -> Result<usize> {
    // SAFETY: at most `len` bytes are written.
    length(unsafe { imports::payload(into.as_mut_ptr(), into.len()) })
}

/// Reads registered memory, a megabyte at a time.
pub fn read(addr: u64, into: &mut [u8]) -> Result {
    // SAFETY: `len` bytes are written, or none.
    status(unsafe { imports::read(addr, into.as_mut_ptr(), into.len()) })
}

/// Writes registered memory, a megabyte at a time.
pub fn write(addr: u64, from: &[u8]) -> Result {
    // SAFETY: `len` bytes are read.
    status(unsafe { imports::write(addr, from.as_ptr(), from.len()) })
}

/// Appends registered memory to the results, as it is now.
pub fn fetch(addr: u64, len: u32) -> Result {
    status(imports::fetch(addr, len))
}

/// Appends registered memory to the results without a copy: as it is when it leaves.
pub fn send_memory(addr: u64, len: u32) -> Result {
    status(imports::send_memory(addr, len))
}

/// Appends bytes to the results.
pub fn output(from: &[u8]) -> Result {
    // SAFETY: `len` bytes are read.
    status(unsafe { imports::output(from.as_ptr(), from.len()) })
}

/// Writes bytes into a peer's memory, by a queue pair of the same protection domain.
pub fn send_to(qpn: u32, rkey: u32, addr: u64, from: &[u8]) -> Result {
    // SAFETY: `len` bytes are read.
    status(unsafe { imports::send_to(qpn, rkey, addr, from.as_ptr(), from.len()) })
}

/// Waits until all that [`send_to`] has sent is acknowledged.
pub fn sent() -> Result {
    status(imports::sent())
}

/// Lets others go first.
pub fn yield_now() -> Result {
    status(imports::yield_now())
}
