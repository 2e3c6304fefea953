//! The registered memory of a client of kernels: places for calls and their results.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use remora_nic::kernel::{HEADER_LEN, STATUS_WORD_LEN};
use remora_nic::qp::Mtu;
use remora_nic::{Access, Queue};

use super::failure::CallFailure;
use super::{CallStatus, Header, Notify, StatusWord};
use crate::memory::BufferError;
use crate::queue_pair::QueuePair;
use crate::region::{MemoryRegion, ProtectionDomain, RegisterError};

/// Room for a call's header and parameters: a packet of the largest MTU.
const CALL_LEN: usize = Mtu::B4096.bytes() as usize;
/// The most bytes of header and parameters that every connection takes.
const ALWAYS_FITS: usize = Mtu::B256.bytes() as usize;
/// The most bytes of header and parameters that travel in the send element itself, if the queue's
/// elements have that much room.
pub(super) const SHORT_LEN: usize = 128;
/// Room for a status word, on a cache line of its own.
const WORD_LEN: usize = 64;
/// The alignment of long results. In a packet, the bytes of a result lie behind a few headers, so a
/// little further into a page than here. A copy to a place still further into a page takes half as
/// long again: the processor then mistakes its loads for loads of bytes just stored 4 KiB away.
const PAGE: usize = 4096;

/// Places for calls, each with room for a result.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) queue_pair: QueuePair,
    /// The path MTU, as far as it is known: header and parameters are one packet.
    mtu: AtomicUsize,
    pub(super) region: MemoryRegion,
    result_len: usize,
    pub(super) count: usize,
    /// The most bytes of header and parameters that travel in a send element.
    inline: usize,
}

/// Header and parameters of a call, where the card will find them.
pub(super) enum Head {
    /// In the send element: these bytes, up to the length beside them.
    Short([u8; SHORT_LEN], usize),
    /// In this part of the region.
    Long(Range<usize>),
}

impl Places {
    pub(super) fn new(
        domain: &ProtectionDomain,
        queue_pair: &QueuePair,
        count: usize,
        result_len: usize,
    ) -> Result<Places, RegisterError> {
        let result_len = result_len.max(1);
        let result_len = result_len.next_multiple_of(if result_len < PAGE { 64 } else { PAGE });
        let count = count.max(1);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = domain.alloc(count * (CALL_LEN + WORD_LEN + result_len), access)?;
        let inline = queue_pair.ring(Queue::Send).inline_room().min(SHORT_LEN);
        let (queue_pair, mtu) = (queue_pair.clone(), ALWAYS_FITS.into());
        Ok(Places { queue_pair, mtu, region, result_len, count, inline })
    }

    /// Refuses a call that no packet has room for.
    fn fits(&self, params: usize) -> Result<(), CallFailure> {
        let len = HEADER_LEN + params;
        if len <= self.mtu.load(Relaxed) {
            return Ok(());
        }
        // The card is asked seldom: for a call that is longer than all before it.
        let mtu = self.queue_pair.query().attr.path_mtu;
        let mtu = mtu.map_or(CALL_LEN, |mtu| mtu.bytes() as usize);
        self.mtu.store(mtu, Relaxed);
        if len > mtu {
            return Err(CallFailure::TooLong { len: params, most: mtu - HEADER_LEN });
        }
        Ok(())
    }

    fn result_at(&self, place: usize) -> usize {
        place * self.result_len
    }

    fn call_at(&self, place: usize) -> usize {
        self.count * self.result_len + place * CALL_LEN
    }

    fn word_at(&self, place: usize) -> usize {
        self.count * (self.result_len + CALL_LEN) + place * WORD_LEN
    }

    /// Makes the header of a call, and puts it where the card will find it. A call with `payload`
    /// is gathered from memory.
    #[inline]
    pub(super) fn head(
        &self,
        place: usize,
        params: &[u8],
        payload: bool,
    ) -> Result<Head, CallFailure> {
        self.fits(params.len())?;
        let header = Header {
            notify: Notify::Both(self.region.remote(self.word_at(place) as u64)),
            local: false,
            params_len: u16::try_from(params.len()).unwrap_or(u16::MAX),
            to: self.region.remote(self.result_at(place) as u64),
            max_len: u32::try_from(self.result_len).unwrap_or(u32::MAX),
            cookie: place as u64,
        };
        let (head, len) = (header.to_bytes(), HEADER_LEN + params.len());
        if !payload && len <= self.inline {
            let mut bytes = [0; SHORT_LEN];
            bytes[..HEADER_LEN].copy_from_slice(&head);
            bytes[HEADER_LEN..len].copy_from_slice(params);
            return Ok(Head::Short(bytes, len));
        }
        let at = self.call_at(place);
        self.region.write_at(at, &head)?;
        self.region.write_at(at + head.len(), params)?;
        Ok(Head::Long(at..at + len))
    }

    /// Where the result of a call lies that ended with `status` and a last message of `last` bytes.
    #[inline]
    pub(super) fn result(
        &self,
        place: usize,
        status: CallStatus,
        last: u32,
    ) -> Result<Range<usize>, CallFailure> {
        let at = self.result_at(place);
        // The completion has the length of the last message. If there were more messages, the
        // status word has the length of all.
        let len = self.take_word(place)?.map_or(last, |word| word.len) as usize;
        if status != CallStatus::OK {
            return Err(CallFailure::Status(status));
        }
        if len > self.result_len {
            return Err(CallFailure::Answer);
        }
        Ok(at..at + len)
    }

    /// The status word of a call that has ended, if it has one. The word is cleared, so that the
    /// next call in the place does not find it.
    fn take_word(&self, place: usize) -> Result<Option<StatusWord>, BufferError> {
        let at = self.word_at(place);
        // Mostly there is none: its last bytes are zero then.
        let mut last = [0; 8];
        self.region.read_at(at + STATUS_WORD_LEN - last.len(), &mut last)?;
        if last == [0; 8] {
            return Ok(None);
        }
        let mut bytes = [0; STATUS_WORD_LEN];
        self.region.read_at(at, &mut bytes)?;
        self.region.write_at(at, &[0; STATUS_WORD_LEN])?;
        Ok(StatusWord::parse(&bytes))
    }
}
