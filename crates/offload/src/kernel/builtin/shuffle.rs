//! Shuffle: radix partitioning of 8-byte values on their low bits while they arrive (StRoM §6.4).
//!
//! A call first sends a histogram: the size and the address of each of up to 1,024 partitions.
//! Values then come by RPC WRITE, or by plain WRITE through the receive kernel, and each goes to
//! the next place of its partition. Where a memory access costs a call (in StRoM's card a PCIe
//! transaction), a buffer of 16 values for each partition gathers them first, and the end of each
//! message writes out what the buffers hold. Where the card can store values directly, the
//! processor's cache lines gather them, and a buffer would only add a copy.

use core::task::{self, Poll};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::column::Rows;
use super::reader::{Reader, require};
use crate::kernel::{
    AsyncProgram, CallStatus, Context, Passing, Program, Scatter, Tap, TapIo, Verdict,
};

/// The most low bits of a value that choose its partition: 1,024 partitions.
pub const BITS_MAX: u8 = 10;
/// Values that a partition's buffer holds.
pub const BUFFER: usize = 16;
/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 16;
/// Bytes of a [`Partition`] in a histogram.
pub const PARTITION_LEN: usize = 16;

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Ask {
    /// The payload is a histogram: 2^bits [`Partition`]s.
    Histogram = 0,
    /// The payload is values.
    Values = 1,
    /// There is no payload: the call only reports.
    Report = 2,
}

/// A call's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// What the call does.
    pub ask: Ask,
    /// For a histogram: the number of low bits that choose a partition.
    pub bits: u8,
    /// The histogram that the call uses; [`SESSIONS_EACH`] may be in use at once on a queue pair.
    pub session: u32,
}

impl Params {
    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] if the bytes are no valid parameters.
    pub fn parse(bytes: &[u8]) -> Result<Params, CallStatus> {
        let mut reader = Reader(bytes);
        let ask = match reader.u8()? {
            0 => Ask::Histogram,
            1 => Ask::Values,
            2 => Ask::Report,
            _ => return Err(CallStatus::BAD_PARAMS),
        };
        let bits = reader.u8()?;
        require(bits <= BITS_MAX && reader.u16()? == 0)?;
        let session = reader.u32()?;
        require(reader.u64()? == 0)?;
        reader.end()?;
        Ok(Params { ask, bits, session })
    }

    /// The parameters' bytes.
    pub fn to_bytes(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        (out[0], out[1]) = (self.ask as u8, self.bits);
        out[4..8].copy_from_slice(&self.session.to_le_bytes());
        out
    }
}

/// A partition. In a histogram: address u64, values u64, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Address, in granted memory.
    pub address: u64,
    /// The number of values that fit.
    pub values: u64,
}

impl Partition {
    /// The bytes of a histogram: partitions of these sizes, one after the other from `address` on.
    pub fn histogram(address: u64, sizes: &[u64]) -> Vec<u8> {
        let mut at = address;
        let mut out = Vec::with_capacity(sizes.len() * PARTITION_LEN);
        for values in sizes {
            out.extend_from_slice(&at.to_le_bytes());
            out.extend_from_slice(&values.to_le_bytes());
            at = at.wrapping_add(values.wrapping_mul(8));
        }
        out
    }
}

/// The most partitions.
const PARTITIONS: usize = 1 << BITS_MAX;

/// A partition in use: the addresses of its next value and of its end.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    next: u64,
    end: u64,
}

/// The buffers of the partitions.
///
/// A buffer is the image of an aligned block of memory, so every block but a partition's first and
/// last is written whole. Buffers are allocated when the first value needs one.
#[derive(Clone, Default, Debug)]
struct Buffers(Vec<Block>);

#[derive(Clone, Copy, Default, Debug)]
struct Block {
    /// The address of its first value.
    to: u64,
    len: usize,
    values: [[u8; 8]; BUFFER],
}

impl Block {
    fn bytes(&self) -> &[u8] {
        self.values[..self.len].as_flattened()
    }

    /// Empties the block and returns what it held; `None` if it was empty.
    fn take(&mut self) -> Option<Block> {
        let full = (self.len > 0).then_some(*self);
        self.len = 0;
        full
    }
}

impl Buffers {
    /// Adds the next value of a partition. Returns the block if it must be written now.
    fn add(&mut self, partition: usize, to: u64, value: [u8; 8]) -> Option<Block> {
        if self.0.is_empty() {
            self.0.resize(PARTITIONS, Block::default());
        }
        let block = &mut self.0[partition];
        if block.len == 0 {
            block.to = to;
        }
        block.values[block.len] = value;
        block.len += 1;
        let ends = (to / 8 + 1).is_multiple_of(BUFFER as u64) || block.len == BUFFER;
        if ends { block.take() } else { None }
    }
}

/// A histogram, and how far each partition has been filled.
#[derive(Clone, Debug)]
pub struct Shuffle {
    /// As many slots as there can be partitions, so that an index needs no check.
    slots: Box<[Slot; PARTITIONS]>,
    mask: usize,
    /// The sum of the partitions' first addresses.
    begin: u64,
    overflowed: u64,
    buffers: Buffers,
}

impl Shuffle {
    /// The shuffle for a histogram of 2^`bits` partitions.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] if `bits` is above [`BITS_MAX`], if the histogram does not have
    /// 2^`bits` partitions, or if a partition exceeds the address space.
    pub fn new(bits: u8, histogram: &[u8]) -> Result<Shuffle, CallStatus> {
        require(bits <= BITS_MAX && histogram.len() == PARTITION_LEN << bits)?;
        let mut slots = Box::new([Slot::default(); PARTITIONS]);
        for (entry, slot) in histogram.chunks_exact(PARTITION_LEN).zip(slots.iter_mut()) {
            let mut reader = Reader(entry);
            let (next, values) = (reader.u64()?, reader.u64()?);
            let end = values.checked_mul(8).and_then(|len| next.checked_add(len));
            *slot = Slot { next, end: end.ok_or(CallStatus::BAD_PARAMS)? };
        }
        let begin = sum_of_next(&*slots);
        let (mask, buffers) = ((1 << bits) - 1, Buffers::default());
        Ok(Shuffle { slots, mask, begin, overflowed: 0, buffers })
    }

    /// Writes whole 8-byte values to their partitions.
    ///
    /// # Errors
    /// Those of [`Scatter::write`]. Values that were gathered for the failed block are lost.
    #[inline(always)]
    pub fn push(&mut self, values: &[u8], out: &mut Scatter<'_>) -> Result<(), CallStatus> {
        let mask = self.mask % PARTITIONS;
        let mut placed = place(&mut self.slots, mask, &mut self.overflowed, values);
        while let Some((to, value)) = out.store(&mut placed) {
            if let Some(block) = self.buffers.add(partition(value, mask), to, value) {
                out.write(block.to, block.bytes())?;
            }
        }
        Ok(())
    }

    /// Empties the buffers, and returns the blocks that held values.
    fn rest(&mut self) -> impl Iterator<Item = Block> {
        self.buffers.0.iter_mut().filter_map(Block::take)
    }

    /// The number of values written to partitions, and the number of values that did not fit.
    pub fn counts(&self) -> (u64, u64) {
        (sum_of_next(&*self.slots).wrapping_sub(self.begin) / 8, self.overflowed)
    }
}

fn partition(value: [u8; 8], mask: usize) -> usize {
    u64::from_le_bytes(value) as usize & mask
}

/// The address of each value that fits its partition, and the value. Each item taken counts as
/// written; a value that does not fit is counted in `overflowed`.
#[inline(always)]
fn place(
    slots: &mut [Slot; PARTITIONS],
    mask: usize,
    overflowed: &mut u64,
    values: &[u8],
) -> impl Iterator<Item = (u64, [u8; 8])> {
    values.as_chunks().0.iter().filter_map(move |value| {
        let slot = &mut slots[partition(*value, mask)];
        let to = slot.next;
        if to == slot.end {
            *overflowed += 1;
            return None;
        }
        slot.next += 8;
        Some((to, *value))
    })
}

fn sum_of_next(slots: &[Slot]) -> u64 {
    slots.iter().fold(0, |sum, slot| sum.wrapping_add(slot.next))
}

/// The most histograms of one queue pair in use at once.
///
/// There is no limit for all queue pairs together: a client that has many would use up what the
/// others need. What histograms take is bounded by the number of queue pairs, which the program
/// that accepts connections limits.
pub const SESSIONS_EACH: usize = 4;

/// The kernel, called by RPC WRITE and as a receive kernel. Its clones share their histograms.
///
/// A histogram belongs to the queue pair that it came by: no other uses it, and it ends with it.
#[derive(Clone, Debug, Default)]
pub struct Shuffles {
    /// By queue pair, and by the number that its requester has given.
    sessions: Arc<Mutex<BTreeMap<(u32, u32), Shuffle>>>,
}

impl Shuffles {
    /// A kernel without histograms.
    pub fn new() -> Shuffles {
        Shuffles::default()
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<(u32, u32), Shuffle>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` with the shuffle of a queue pair's session; `None` if the session has no
    /// histogram.
    pub fn with<R>(
        &self,
        qpn: u32,
        session: u32,
        act: impl FnOnce(&mut Shuffle) -> R,
    ) -> Option<R> {
        self.sessions().get_mut(&(qpn, session)).map(act)
    }

    /// Sets the shuffle of a queue pair's session, and replaces an earlier one.
    ///
    /// # Errors
    /// [`CallStatus::MEMORY`] if the queue pair has [`SESSIONS_EACH`] other histograms.
    pub fn begin(&self, qpn: u32, session: u32, shuffle: Shuffle) -> Result<(), CallStatus> {
        let mut sessions = self.sessions();
        let of_queue_pair = sessions.range((qpn, 0)..=(qpn, u32::MAX)).count();
        if of_queue_pair >= SESSIONS_EACH && !sessions.contains_key(&(qpn, session)) {
            return Err(CallStatus::MEMORY);
        }
        sessions.insert((qpn, session), shuffle);
        Ok(())
    }

    /// Forgets the histograms of a queue pair that is gone.
    fn end(&self, qpn: u32) {
        let mut sessions = self.sessions();
        while let Some((&key, _)) = sessions.range((qpn, 0)..=(qpn, u32::MAX)).next() {
            sessions.remove(&key);
        }
    }

    /// The kernel's program. It ends the histograms of queue pairs that are gone.
    pub fn program(&self) -> Box<dyn Program> {
        let make = self.clone();
        let calls = AsyncProgram::new(move |context| make.clone().run(context));
        Box::new(ShuffleProgram { calls, shuffles: self.clone() })
    }

    /// Runs one invocation. The result counts values since the histogram: values written u64,
    /// values that did not fit u64.
    ///
    /// # Errors
    /// [`CallStatus::NOT_FOUND`] if the session has no histogram, [`CallStatus::TOO_LONG`] if
    /// values did not fit their partitions.
    async fn run(self, context: Context) -> Result<(), CallStatus> {
        let Params { ask, bits, session } = context.params(Params::parse).await?;
        match ask {
            Ask::Histogram => self.histogram(context, session, bits).await?,
            Ask::Values => self.values(context, session).await?,
            Ask::Report => {}
        }
        let counts = self.with(context.qpn(), session, |shuffle| shuffle.counts());
        let (written, overflowed) = counts.ok_or(CallStatus::NOT_FOUND)?;
        if overflowed > 0 && ask == Ask::Values {
            return Err(CallStatus::TOO_LONG);
        }
        if context.max_len() == 0 {
            return Ok(());
        }
        let report = [written.to_le_bytes(), overflowed.to_le_bytes()];
        context.output(|out| out.extend_from_slice(report.as_flattened())).await
    }

    async fn histogram(&self, context: Context, session: u32, bits: u8) -> Result<(), CallStatus> {
        let mut histogram = Vec::new();
        let most = PARTITION_LEN << BITS_MAX;
        let add = |histogram: &mut Vec<u8>, piece: &[u8]| {
            histogram.extend_from_slice(&piece[..piece.len().min(most + 1)]);
        };
        while context.payload(|piece, _| add(&mut histogram, piece)).await?.is_some() {
            require(histogram.len() <= most)?;
        }
        self.begin(context.qpn(), session, Shuffle::new(bits, &histogram)?)
    }

    async fn values(&self, context: Context, session: u32) -> Result<(), CallStatus> {
        let (qpn, mut rows) = (context.qpn(), Rows::new(8));
        loop {
            let more = context.payload(|piece, port| {
                let (mut result, mut out) = (Ok(()), port.scatter());
                let known = self.with(qpn, session, |shuffle| {
                    rows.push(piece, |values| {
                        if result.is_ok() {
                            result = shuffle.push(values, &mut out);
                        }
                    });
                });
                known.ok_or(CallStatus::NOT_FOUND)?;
                result
            });
            match more.await? {
                Some(result) => result?,
                None => break,
            }
        }
        require(rows.end() == 0)?;
        let rest: Option<Vec<Block>> = self.with(qpn, session, |shuffle| shuffle.rest().collect());
        for block in rest.ok_or(CallStatus::NOT_FOUND)? {
            context.write(block.to, block.bytes()).await?;
        }
        Ok(())
    }

    /// The receive kernel: values of plain WRITEs go to the partitions that a call on the same
    /// queue pair has set, in place of the WRITE's address.
    pub fn tap(&self, session: u32) -> Box<dyn Tap> {
        Box::new(ShuffleTap { shuffles: self.clone(), session })
    }
}

struct ShuffleProgram<P> {
    calls: P,
    shuffles: Shuffles,
}

impl<P: Program> Program for ShuffleProgram<P> {
    fn start(&mut self, context: Context) -> u32 {
        self.calls.start(context)
    }

    fn poll(&mut self, cell: u32, cx: &mut task::Context<'_>) -> Poll<Result<(), CallStatus>> {
        self.calls.poll(cell, cx)
    }

    fn stop(&mut self, cell: u32) {
        self.calls.stop(cell);
    }

    fn closed(&mut self, qpn: u32) {
        self.shuffles.end(qpn);
    }
}

#[derive(Debug)]
struct ShuffleTap {
    shuffles: Shuffles,
    session: u32,
}

impl Tap for ShuffleTap {
    fn receiving(
        &mut self,
        io: &mut TapIo<'_, '_>,
        passing: &Passing,
        bytes: &[u8],
        _: &mut Vec<u8>,
    ) -> Verdict {
        let mut out = io.scatter();
        let taken = self.shuffles.with(passing.qpn, self.session, |shuffle| {
            shuffle.push(bytes, &mut out)?;
            if !passing.ends(bytes.len()) {
                return Ok(());
            }
            shuffle.rest().try_for_each(|block| out.write(block.to, block.bytes()))
        });
        // Without a histogram, or if a partition's memory is gone, data goes to the WRITE's own
        // address.
        if taken == Some(Ok(())) { Verdict::Take } else { Verdict::Pass }
    }

    fn closed(&mut self, qpn: u32) {
        self.shuffles.end(qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parameters_round_trip() {
        let params = Params { ask: Ask::Values, bits: 10, session: 7 };
        assert_eq!(Params::parse(&params.to_bytes()), Ok(params));
        let many = Params { bits: 11, ..params };
        assert_eq!(Params::parse(&many.to_bytes()), Err(CallStatus::BAD_PARAMS));
    }

    #[test]
    fn a_histogram_has_a_place_for_each_partition() {
        let histogram = Partition::histogram(1000, &[1, 2]);
        assert!(Shuffle::new(1, &histogram).is_ok());
        assert_eq!(Shuffle::new(2, &histogram).unwrap_err(), CallStatus::BAD_PARAMS);
        let wraps = Partition::histogram(u64::MAX - 4, &[1]);
        assert_eq!(Shuffle::new(0, &wraps).unwrap_err(), CallStatus::BAD_PARAMS);
    }

    #[test]
    fn values_that_do_not_fit_are_counted() {
        let mut shuffle = Shuffle::new(1, &Partition::histogram(1000, &[2, 0])).unwrap();
        let values: Vec<u8> = [4u64, 1, 6, 8, 3].iter().flat_map(|v| v.to_le_bytes()).collect();
        // An incomplete value at the end is ignored.
        let values = [values, vec![0; 7]].concat();
        let placed = places(&mut shuffle, &values);
        assert_eq!(placed, [(1000, 4u64.to_le_bytes()), (1008, 6u64.to_le_bytes())]);
        assert_eq!(shuffle.counts(), (2, 3));
        assert!(places(&mut shuffle, &values).is_empty());
        assert_eq!(shuffle.counts(), (2, 8));
    }

    fn places(shuffle: &mut Shuffle, values: &[u8]) -> Vec<(u64, [u8; 8])> {
        let Shuffle { slots, mask, overflowed, .. } = shuffle;
        place(slots, *mask, overflowed, values).collect()
    }

    #[test]
    fn blocks_are_written_whole_but_for_the_first_and_the_last() {
        // Partitions that begin at the fourth place of a block, and in the middle of a word.
        for (begin, lengths) in [(1024 + 24, vec![13, 16, 11]), (1024 + 3, vec![16, 16, 8])] {
            let mut buffers = Buffers::default();
            let mut written = Vec::new();
            for i in 0..40u64 {
                written.extend(buffers.add(5, begin + i * 8, i.to_le_bytes()));
                buffers.add(6, 0, [0; 8]);
            }
            written.extend(buffers.0[5].take());
            assert_eq!(buffers.0[5].take().map(|block| block.len), None);
            assert_eq!(written.iter().map(|block| block.len).collect::<Vec<_>>(), lengths);
            let bytes: Vec<u8> = written.iter().flat_map(Block::bytes).copied().collect();
            assert_eq!(bytes, (0..40u64).flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
            let ends = written.iter().map(|block| block.to + block.bytes().len() as u64);
            let begins: Vec<u64> = written.iter().skip(1).map(|block| block.to).collect();
            assert_eq!(ends.take(begins.len()).collect::<Vec<_>>(), begins);
        }
    }

    #[test]
    fn histograms_belong_to_queue_pairs() {
        let shuffles = Shuffles::new();
        let one = || Shuffle::new(0, &Partition::histogram(0, &[1])).unwrap();
        let refused = Err(CallStatus::MEMORY);
        for session in 0..SESSIONS_EACH as u32 {
            assert_eq!(shuffles.begin(7, session, one()), Ok(()));
        }
        assert_eq!(shuffles.begin(7, 99, one()), refused);
        assert_eq!(shuffles.begin(7, 0, one()), Ok(()), "one that is replaced takes no more room");
        assert_eq!(shuffles.with(8, 0, |_| ()), None, "another's");
        assert_eq!(shuffles.begin(8, 0, one()), Ok(()));
        shuffles.end(7);
        assert_eq!(shuffles.with(7, 0, |_| ()), None);
        assert_eq!(shuffles.with(8, 0, |_| ()), Some(()));
    }

    #[test]
    fn many_queue_pairs_lock_out_no_other() {
        let shuffles = Shuffles::new();
        let one = || Shuffle::new(0, &Partition::histogram(0, &[1])).unwrap();
        for qpn in 0..600 {
            for session in 0..SESSIONS_EACH as u32 {
                assert_eq!(shuffles.begin(qpn, session, one()), Ok(()));
            }
        }
        assert_eq!(shuffles.begin(u32::MAX, 0, one()), Ok(()), "another client's");
    }

    proptest! {
        #[test]
        fn each_value_lies_in_its_partition_in_order(
            values in prop::collection::vec(any::<u64>(), 0..500), bits in 0u8..6,
        ) {
            let mut sizes = vec![0; 1 << bits];
            let mask = (1 << bits) - 1;
            values.iter().for_each(|v| sizes[(v & mask) as usize] += 1);
            let mut memory = vec![0u8; values.len() * 8];
            let mut shuffle = Shuffle::new(bits, &Partition::histogram(0, &sizes)).unwrap();
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            for (to, value) in places(&mut shuffle, &bytes) {
                memory[to as usize..][..8].copy_from_slice(&value);
            }
            prop_assert_eq!(shuffle.counts(), (values.len() as u64, 0));
            let mut expected = Vec::new();
            for partition in 0..1 << bits {
                expected.extend(values.iter().filter(|v| *v & mask == partition));
            }
            let got: Vec<u64> =
                memory.as_chunks().0.iter().map(|v| u64::from_le_bytes(*v)).collect();
            prop_assert_eq!(got, expected);
        }
    }
}
