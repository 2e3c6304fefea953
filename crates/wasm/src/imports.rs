//! The functions that a guest may import, of the module `remora`.
//!
//! Addresses of registered memory are u64; offsets in the guest's own memory, and lengths, are
//! u32. Functions return 0, or the number of a [`CallStatus`] that says why they failed. Functions
//! that return a length return the negative number instead.
//!
//! | function | does |
//! |---|---|
//! | `call(into)` | writes 32 bytes: what the call is (below) |
//! | `params(into, len)` | copies at most `len` bytes; returns how many there are |
//! | `payload(into, len)` | waits, copies at most `len` bytes; returns how many, 0 at the end |
//! | `read(addr, into, len)` | [`Context::read`] |
//! | `write(addr, from, len)` | [`Context::write`] |
//! | `fetch(addr, len)` | [`Context::fetch`] |
//! | `send_memory(addr, len)` | [`Context::send_memory`] |
//! | `output(from, len)` | [`Context::output`]: appends |
//! | `send_to(qpn, rkey, addr, from, len)` | [`Context::send_to`] |
//! | `sent()` | [`Context::sent`] |
//! | `yield_now()` | [`Context::yield_now`] |
//! | `granted(index, into)` | [`Context::granted`]: writes 24 bytes (below) |
//! | `passing(into)` | writes 32 bytes: the payload that passes (below) |
//!
//! `call` writes, little-endian: queue pair u32, bytes that fit the requester's buffer u32,
//! op-code u64, cookie u64, bytes of parameters u32, zero u32. `granted` writes: address u64,
//! length u64, and 1 if the region may be written, or else 0, u64. `read` and `write` take at most
//! a megabyte at a time.
//!
//! **In a tap**, `payload` takes the bytes that pass, and `output` appends to the bytes that are
//! written in their place, which may not be longer. `passing` writes: address in the WRITE u64,
//! queue pair u32, bytes u32, bytes of the message before it u32, bytes of the whole message u32,
//! whether it was sent before u32, zero u32. A receive kernel reads and writes granted memory; a
//! send kernel reaches no memory. A tap that calls one of the other functions is stopped.
//!
//! Two errors end an invocation without a return to the guest: a spent budget, and a range outside
//! of the guest's own memory.

use remora_nic::queue::RemoteAddress;
use wasmtime::{Caller, Linker, Result};

use crate::error::{Again, Ended};
use crate::guest::{Guest, open, range};
use crate::limits::STEP_INSTRUCTIONS;
use crate::loan::Lent;
use remora_offload::kernel::CallStatus;
use remora_offload::kernel::hosting::{CHUNK, OBJECT_MAX, charge};

/// The module that guests import the functions from.
pub(crate) const MODULE: &str = "remora";

/// Bytes that `call` writes.
const CALL_LEN: u32 = 32;
/// Bytes that `granted` writes.
const GRANT_LEN: u32 = 24;
/// Bytes that `passing` writes.
const PASSING_LEN: u32 = 32;

macro_rules! offered {
    ($($kind:ident $tap:ident $name:ident($($argument:ident: $type:ty),*);)+) => {
        /// The names of the functions.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),+];

        /// Defines the functions for instances that can be suspended.
        pub(crate) fn offer_suspending(linker: &mut Linker<Guest>) -> Result<()> {
            $(linker.func_wrap_async(MODULE, stringify!($name), |caller, arguments| {
                Box::new($name(caller, arguments))
            })?;)+
            Ok(())
        }

        /// Defines the functions for instances that run as a plain call.
        pub(crate) fn offer_plain(linker: &mut Linker<Guest>) -> Result<()> {
            $(linker.func_wrap(
                MODULE,
                stringify!($name),
                |caller: Caller<'_, Guest>, $($argument: $type),*| {
                    let lent = caller.data().loan.current();
                    let call = $name(caller, ($($argument,)*));
                    offered!(@$kind lent, call)
                },
            )?;)+
            Ok(())
        }

        /// Defines the functions for instances that are bound to streams.
        pub(crate) fn offer_tapping(linker: &mut Linker<Guest>) -> Result<()> {
            $(linker.func_wrap(
                MODULE,
                stringify!($name),
                |caller: Caller<'_, Guest>, $($argument: $type),*| {
                    let lent = caller.data().loan.current();
                    let call = $name(caller, ($($argument,)*));
                    offered!(@$tap lent, call)
                },
            )?;)+
            Ok(())
        }
    };
    // Functions that only affect results that were not sent yet: a trial can run them.
    (@tried $lent:ident, $call:ident) => {
        $lent.poll_once($call)
    };
    // Functions with any other effect: a trial ends before they begin.
    (@effect $lent:ident, $call:ident) => {{
        drop(($lent, $call));
        Err::<u32, _>(wasmtime::Error::from(Again))
    }};
    // Functions for calls only, which need parameters, a way to the requester, or time to wait.
    (@refused $lent:ident, $call:ident) => {
        refuse($lent, $call)
    };
}

/// Ends the invocation or tap that calls a function it may not use.
fn refuse<R>(_: Lent, _: impl Future<Output = Result<R>>) -> Result<R> {
    Err(Ended(CallStatus::TRAP).into())
}

// Columns: in a plain call, in a tap.
offered! {
    tried refused call(into: u32);
    tried refused params(into: u32, len: u32);
    tried tried payload(into: u32, len: u32);
    tried tried read(addr: u64, into: u32, len: u32);
    effect tried write(addr: u64, from: u32, len: u32);
    tried refused fetch(addr: u64, len: u32);
    tried refused send_memory(addr: u64, len: u32);
    tried tried output(from: u32, len: u32);
    effect refused send_to(qpn: u32, rkey: u32, addr: u64, from: u32, len: u32);
    effect refused sent();
    effect refused yield_now();
    tried tried granted(index: u32, into: u32);
    tried tried passing(into: u32);
}

/// The status for the guest, or the error that ends the invocation.
fn status(result: Result<(), CallStatus>) -> Result<u32> {
    match result {
        Ok(()) => Ok(0),
        Err(end @ (CallStatus::BUDGET | CallStatus::TRAP)) => Err(Ended(end).into()),
        Err(status) => Ok(status.0.into()),
    }
}

/// A length for the guest, a negative status, or the error that ends the invocation.
fn length(result: Result<usize, CallStatus>) -> Result<i32> {
    match result {
        Ok(len) => Ok(i32::try_from(len).unwrap_or(i32::MAX)),
        Err(error) => Ok(-status(Err(error))?.cast_signed()),
    }
}

/// Has a tap pay a step for a call that has nothing to do with the card, in instructions: a send
/// kernel has no steps of another kind.
fn pay(caller: &mut Caller<'_, Guest>) -> Result<()> {
    let left = caller.get_fuel()?.checked_sub(STEP_INSTRUCTIONS);
    caller.set_fuel(left.ok_or(Ended(CallStatus::BUDGET))?)
}

/// Limits one read or write to the length of an object, so that a turn ends.
fn bounded(bytes: &mut [u8]) -> Result<&mut [u8], CallStatus> {
    if bytes.len() > OBJECT_MAX { Err(CallStatus::MEMORY) } else { Ok(bytes) }
}

async fn call(mut caller: Caller<'_, Guest>, (into,): (u32,)) -> Result<u32> {
    let (memory, guest) = open(&mut caller)?;
    let into = range(memory, into, CALL_LEN)?;
    let context = guest.context;
    let look = context.params(|params| Ok(params.len() as u32));
    let params_len = look.await.map_err(Ended)?;
    into[..4].copy_from_slice(&context.qpn().to_le_bytes());
    into[4..8].copy_from_slice(&context.max_len().to_le_bytes());
    into[8..16].copy_from_slice(&context.opcode().to_le_bytes());
    into[16..24].copy_from_slice(&context.cookie().to_le_bytes());
    into[24..28].copy_from_slice(&params_len.to_le_bytes());
    into[28..].fill(0);
    status(charge(0).await)
}

async fn params(mut caller: Caller<'_, Guest>, (into, len): (u32, u32)) -> Result<i32> {
    let (memory, guest) = open(&mut caller)?;
    let into = range(memory, into, len)?;
    let copy = guest.context.params(|params| {
        let len = params.len().min(into.len());
        into[..len].copy_from_slice(&params[..len]);
        Ok(params.len())
    });
    let len = copy.await.map_err(Ended)?;
    charge(len).await.map_err(Ended)?;
    length(Ok(len))
}

async fn payload(mut caller: Caller<'_, Guest>, (into, len): (u32, u32)) -> Result<i32> {
    let (memory, guest) = open(&mut caller)?;
    let into = range(memory, into, len)?;
    if guest.passing.is_some() {
        let taken = guest.payload.take(into);
        pay(&mut caller)?;
        return length(Ok(taken));
    }
    if len == 0 {
        return status(charge(0).await).map(|_| 0);
    }
    let rest = &mut guest.payload;
    if !rest.is_empty() {
        charge(0).await.map_err(Ended)?;
        return length(Ok(rest.take(into)));
    }
    let next = guest.context.payload(|piece, _| rest.give(piece, into)).await;
    if next == Ok(None) {
        charge(0).await.map_err(Ended)?;
    }
    length(next.map(Option::unwrap_or_default))
}

async fn read(mut caller: Caller<'_, Guest>, (addr, into, len): (u64, u32, u32)) -> Result<u32> {
    let (memory, guest) = open(&mut caller)?;
    let into = range(memory, into, len)?;
    status(async { guest.context.read(addr, bounded(into)?).await }.await)
}

async fn write(mut caller: Caller<'_, Guest>, (addr, from, len): (u64, u32, u32)) -> Result<u32> {
    let (memory, guest) = open(&mut caller)?;
    let from = range(memory, from, len)?;
    status(async { guest.context.write(addr, bounded(from)?).await }.await)
}

async fn fetch(caller: Caller<'_, Guest>, (addr, len): (u64, u32)) -> Result<u32> {
    status(caller.data().context.fetch(addr, len).await)
}

async fn send_memory(caller: Caller<'_, Guest>, (addr, len): (u64, u32)) -> Result<u32> {
    status(caller.data().context.send_memory(addr, len).await)
}

async fn output(mut caller: Caller<'_, Guest>, (from, len): (u32, u32)) -> Result<u32> {
    let (memory, guest) = open(&mut caller)?;
    let from = range(memory, from, len)?;
    if guest.passing.is_some() {
        let replaced = guest.replace(from);
        pay(&mut caller)?;
        return status(replaced);
    }
    let context = guest.context;
    // Appends in pieces, so that little waits on the card.
    let append = async {
        for piece in from.chunks(CHUNK) {
            charge(piece.len()).await?;
            context.settle().await?;
            context.output(|out| out.extend_from_slice(piece)).await?;
        }
        charge(0).await
    };
    status(append.await)
}

async fn send_to(
    mut caller: Caller<'_, Guest>,
    (qpn, rkey, addr, from, len): (u32, u32, u64, u32, u32),
) -> Result<u32> {
    let (memory, guest) = open(&mut caller)?;
    let from = range(memory, from, len)?;
    let (context, to) = (guest.context, RemoteAddress { addr, rkey });
    // Sends in pieces, so that little waits on the card.
    let send = async {
        for (i, piece) in from.chunks(CHUNK).enumerate() {
            let to = RemoteAddress { addr: to.addr.wrapping_add((i * CHUNK) as u64), ..to };
            context.send_to(qpn, to, piece).await?;
        }
        charge(0).await
    };
    status(send.await)
}

async fn sent(caller: Caller<'_, Guest>, (): ()) -> Result<u32> {
    let context = caller.data().context;
    status(async { charge(0).await.and(context.sent().await) }.await)
}

async fn yield_now(caller: Caller<'_, Guest>, (): ()) -> Result<u32> {
    status(caller.data().context.yield_now().await)
}

async fn granted(mut caller: Caller<'_, Guest>, (index, into): (u32, u32)) -> Result<u32> {
    let (memory, guest) = open(&mut caller)?;
    let into = range(memory, into, GRANT_LEN)?;
    let look = async {
        charge(0).await?;
        let (addr, len, write) = guest.context.granted(index as usize).await?;
        into[..8].copy_from_slice(&addr.to_le_bytes());
        into[8..16].copy_from_slice(&len.to_le_bytes());
        into[16..].copy_from_slice(&u64::from(write).to_le_bytes());
        Ok(())
    };
    status(look.await)
}

async fn passing(mut caller: Caller<'_, Guest>, (into,): (u32,)) -> Result<u32> {
    let (memory, guest) = open(&mut caller)?;
    let into = range(memory, into, PASSING_LEN)?;
    let passing = guest.passing.ok_or(Ended(CallStatus::TRAP))?;
    into[..8].copy_from_slice(&passing.addr.to_le_bytes());
    let len = guest.payload.len() as u32;
    let words = [passing.qpn, len, passing.offset, passing.total, passing.again.into(), 0];
    for (place, word) in into[8..].chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    pay(&mut caller)?;
    Ok(0)
}
