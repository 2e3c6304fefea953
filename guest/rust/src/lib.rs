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
        pub fn granted(index: u32, into: *mut u8) -> u32;
        pub fn passing(into: *mut u8) -> u32;
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

/// Exports a function `fn() -> Result<Verdict>` as the module's tap: the card calls it for each
/// payload of the WRITEs that the module is bound to, as it passes. It takes the payload by
/// [`payload`], reads and writes what it was granted, and puts out, by [`output`], what is to be
/// written instead. Nothing else is offered to it. A tap that fails is stopped: WRITEs go on
/// without it.
///
/// One instance sees all of the stream, and keeps its globals as long as it is bound. Calls of the
/// module's kernel do not see them: what they are to find belongs into granted memory.
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

/// What is to become of a payload that has passed a [`tap!`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is written where it was to go.
    Pass = 0,
    /// What was put out is written there instead; it may be shorter.
    Replace = 1,
    /// It is written nowhere.
    Take = 2,
}

/// A payload that passes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Passing {
    /// Where it is to go, as the WRITE says it.
    pub addr: u64,
    /// The queue pair that it came by.
    pub qpn: u32,
    /// Its bytes: a packet's, as a rule.
    pub len: u32,
    /// Bytes of the message before it.
    pub offset: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// Not zero if it was sent before, and is now sent again (where it is sent, only).
    pub again: u32,
    reserved: u32,
}

/// The payload that passes: in a [`tap!`] only.
pub fn passing() -> Passing {
    let mut passing = Passing::default();
    // SAFETY: 32 bytes are written, which is what a `Passing` has, and any bytes make one.
    unsafe { imports::passing((&raw mut passing).cast()) };
    passing
}

/// A region that the kernel was granted.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Granted {
    /// Its first address.
    pub addr: u64,
    /// Its bytes.
    pub len: u64,
    /// Not zero if it may be written.
    pub writable: u64,
}

/// The `index`th region that was granted, from 0 on.
///
/// # Errors
/// [`Status::NOT_FOUND`] if there are not so many, [`Status::ACCESS`] if it was withdrawn.
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
