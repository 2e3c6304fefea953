//! Calls of kernels by polling: headers, room for results, and waiting for them.

use std::ops::Range;
use std::time::{Duration, Instant};

use remora_nic::PostError;
use remora_nic::queue::{
    Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest, Sge, Status, WorkKind,
};

use super::CallStatus;
use super::failure::CallFailure;
use super::places::{Head, Places};
use crate::channel::deadline;
use crate::completion::CompletionQueue;
use crate::queue_pair::QueuePair;
use crate::region::{MemoryRegion, ProtectionDomain, RegisterError};

/// A call in flight.
#[derive(Debug)]
#[must_use = "a call keeps its place until it is finished"]
pub struct BegunCall {
    slot: usize,
}

/// A place for a call.
#[derive(Clone, Copy, Debug)]
enum Slot {
    Free,
    Waiting,
    /// The program no longer waits for the call's end, which is yet to come.
    Late,
    Done(CallStatus, u32),
}

/// Calls kernels by a queue pair, several at once if need be.
///
/// A WRITE WITH IMMEDIATE reports the end of a call. So the queue pair's receive completions must
/// go to a completion queue that no other code polls.
///
/// The client polls, for programs that measure in microseconds; the calls of
/// [`AsyncKernelClient`](super::AsyncKernelClient) are futures.
///
/// ```
/// use remora::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (server, device) = (Device::open()?, Device::open()?);
/// let echo = |call: Context| async move {
///     let bytes = call.params(|params| Ok(params.to_vec())).await?;
///     call.output(|out| out.extend_from_slice(&bytes)).await
/// };
/// server.deploy(7, Deployment::new("echo", []), echo)?;
///
/// let (there, domain) = (server.alloc_pd()?, device.alloc_pd()?);
/// let passive = there.create_qp(&QueuePairOptions::new())?;
/// let (sends, receives) = (device.create_cq(16)?, device.create_cq(16)?);
/// let qp = domain.create_qp(&QueuePairOptions::rc(&sends).recv_cq(&receives))?;
/// let params = ConnectionParams::new(device.info().mtu).kernels(true);
/// passive.connect(qp.local(), &params)?;
/// qp.connect(passive.local(), &params)?;
///
/// let mut client = KernelClient::new(&domain, &qp, &receives, 4, 64)?;
/// let mut answer = Vec::new();
/// client.call(7, b"hello", &mut answer)?;
/// assert_eq!(answer, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KernelClient {
    recv_cq: CompletionQueue,
    places: Places,
    slots: Vec<Slot>,
    /// Receive elements that are posted beyond those that the calls in flight need.
    spare: usize,
    /// Where completions are polled to: room for few, since most polls find none.
    done: [Completion; 2],
    /// How long a call may take; ten seconds, unless it is changed.
    pub timeout: Duration,
}

impl KernelClient {
    /// A client for `places` calls at once, with results of at most `result_len` bytes. The queue
    /// pair needs `places` receive elements, and for payload a second scatter/gather entry in its
    /// send elements. Calls whose header (40 bytes) and parameters fit into a send element as
    /// inline data take less time.
    ///
    /// # Errors
    /// Memory is short, or the card refuses to register it.
    ///
    /// # Panics
    /// The queue pair does not report receives to `recv_cq`.
    pub fn new(
        domain: &ProtectionDomain,
        queue_pair: &QueuePair,
        recv_cq: &CompletionQueue,
        places: usize,
        result_len: usize,
    ) -> Result<KernelClient, RegisterError> {
        assert_eq!(
            queue_pair.query().recv_cq,
            recv_cq.handle(),
            "the queue pair reports receives to another queue"
        );
        let places = Places::new(domain, queue_pair, places, result_len)?;
        Ok(KernelClient {
            recv_cq: recv_cq.clone(),
            slots: vec![Slot::Free; places.count],
            places,
            spare: 0,
            done: Default::default(),
            timeout: Duration::from_secs(10),
        })
    }

    /// The queue pair.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.places.queue_pair
    }

    /// Begins a call by RPC. Parameters and a header of 40 bytes are one packet.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn begin(&mut self, opcode: u64, params: &[u8]) -> Result<BegunCall, CallFailure> {
        self.post(opcode, params, None)
    }

    /// Begins a call by RPC WRITE, with payload in registered memory.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn begin_with(
        &mut self,
        opcode: u64,
        params: &[u8],
        payload: Sge,
    ) -> Result<BegunCall, CallFailure> {
        self.post(opcode, params, Some(payload))
    }

    fn post(
        &mut self,
        opcode: u64,
        params: &[u8],
        payload: Option<Sge>,
    ) -> Result<BegunCall, CallFailure> {
        let free = self.free_slot()?;
        let slot = free.ok_or(CallFailure::Full(self.slots.len()))?;
        match (self.places.head(slot, params, payload.is_some())?, payload) {
            (Head::Short(bytes, len), _) => {
                self.send(slot, SendOp::Rpc { opcode }, Data::Inline(&bytes[..len]))?;
            }
            (Head::Long(head), payload) => {
                let head = self.places.region.sge(head.start as u64, head.len() as u32);
                let sges = [head, payload.unwrap_or_default()];
                let (op, sges) = match payload {
                    None => (SendOp::Rpc { opcode }, &sges[..1]),
                    Some(_) => (SendOp::RpcWrite { opcode }, &sges[..]),
                };
                self.send(slot, op, Data::Sges(sges))?;
            }
        }
        Ok(BegunCall { slot })
    }

    /// Is there a place for a call? Drives the device one step if all are taken: a call that took
    /// too long may have ended.
    ///
    /// # Errors
    /// The connection broke.
    pub fn has_room(&mut self) -> Result<bool, CallFailure> {
        self.free_slot().map(|slot| slot.is_some())
    }

    fn free_slot(&mut self) -> Result<Option<usize>, CallFailure> {
        let free = |slot: &Slot| matches!(slot, Slot::Free);
        let found = self.slots.iter().position(free);
        if found.is_some() {
            return Ok(found);
        }
        self.poll()?;
        Ok(self.slots.iter().position(free))
    }

    /// Posts a call, and a receive element for its end if there is none to spare.
    fn send(&mut self, slot: usize, op: SendOp, data: Data<'_>) -> Result<(), PostError> {
        // One doorbell for both posts, so that an acknowledge that is owed rides behind the call.
        let mut batch = self.places.queue_pair.post_batch();
        if self.spare == 0 {
            // As many as there are places, so that most calls post none.
            let waits = |slot: &&Slot| matches!(slot, Slot::Waiting | Slot::Late);
            for _ in self.slots.iter().filter(waits).count()..self.slots.len() {
                let posted =
                    batch.post_recv(&self.places.queue_pair, &RecvRequest { wr_id: 0, sges: &[] });
                if self.spare > 0 && posted.is_err() {
                    break;
                }
                posted?;
                self.spare += 1;
            }
        }
        let flags = SendFlags::empty();
        batch.post_send(
            &self.places.queue_pair,
            &SendRequest { wr_id: slot as u64, op, data, flags },
        )?;
        drop(batch);
        self.spare -= 1;
        self.slots[slot] = Slot::Waiting;
        Ok(())
    }

    /// Has the call ended? Drives the device one step if no call has ended.
    ///
    /// # Errors
    /// The connection broke.
    pub fn is_done(&mut self, call: &BegunCall) -> Result<bool, CallFailure> {
        if matches!(self.slots[call.slot], Slot::Waiting) {
            self.poll()?;
        }
        Ok(matches!(self.slots[call.slot], Slot::Done(..)))
    }

    /// Polls once. (Inlined: the processor does not predict a return behind a system call.)
    #[inline(always)]
    fn poll(&mut self) -> Result<(), CallFailure> {
        let n = self.recv_cq.poll(&mut self.done)?;
        for entry in &self.done[..n] {
            if entry.status != Status::Success {
                return Err(CallFailure::Connection(entry.status));
            }
            let (status, cookie) = CallStatus::from_immediate(entry.imm_or_key);
            let place = cookie as usize;
            match self.slots.get_mut(place).filter(|_| entry.kind == WorkKind::RecvWriteImm) {
                Some(slot @ Slot::Waiting) => *slot = Slot::Done(status, entry.len),
                Some(slot @ Slot::Late) => {
                    *slot = Slot::Free;
                    // Nobody wants the result; its status word is cleared with it.
                    _ = self.places.result(place, status, entry.len);
                }
                // The end of no known call has taken an element.
                _ => self.spare = self.spare.saturating_sub(1),
            }
        }
        Ok(())
    }

    /// Waits for a call; returns how it ended, and the length of its last message.
    fn wait(&mut self, call: &BegunCall) -> Result<(CallStatus, u32), CallFailure> {
        let mut spins = 0u32;
        let mut end = None;
        loop {
            if let Slot::Done(status, len) = self.slots[call.slot] {
                return Ok((status, len));
            }
            self.poll()?;
            spins += 1;
            // The clock is read seldom, since that takes as long as an empty poll.
            if spins.is_multiple_of(64) && matches!(self.slots[call.slot], Slot::Waiting) {
                let now = Instant::now();
                if now > *end.get_or_insert_with(|| deadline(self.timeout)) {
                    self.slots[call.slot] = Slot::Late;
                    return Err(CallFailure::Timeout(self.timeout));
                }
            }
        }
    }

    /// Waits for a call; appends its result to `out` and returns its length.
    ///
    /// A call that took too long keeps its place until its end comes.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn finish(&mut self, call: BegunCall, out: &mut Vec<u8>) -> Result<usize, CallFailure> {
        let result = self.finish_in_place(call)?;
        let (from, len) = (out.len(), result.len());
        out.resize(from + len, 0);
        self.places.region.read_at(result.start, &mut out[from..])?;
        Ok(len)
    }

    /// Waits for a call; returns where in [`KernelClient::region`] its result lies, until another
    /// call begins.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn finish_in_place(&mut self, call: BegunCall) -> Result<Range<usize>, CallFailure> {
        let (status, last) = self.wait(&call)?;
        self.slots[call.slot] = Slot::Free;
        self.places.result(call.slot, status, last)
    }

    /// The registered memory that results are written to.
    pub fn region(&self) -> &MemoryRegion {
        &self.places.region
    }

    /// Calls by RPC and waits; appends the result to `out` and returns its length.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn call(
        &mut self,
        opcode: u64,
        params: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<usize, CallFailure> {
        let call = self.begin(opcode, params)?;
        self.finish(call, out)
    }

    /// Calls by RPC WRITE and waits; appends the result to `out` and returns its length.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn call_with(
        &mut self,
        opcode: u64,
        params: &[u8],
        payload: Sge,
        out: &mut Vec<u8>,
    ) -> Result<usize, CallFailure> {
        let call = self.begin_with(opcode, params, payload)?;
        self.finish(call, out)
    }
}
