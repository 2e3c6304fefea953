//! Shuffle: radix partitioning of 8-byte values on their low bits, as they arrive (StRoM §6.4).
//!
//! A histogram, sent first, says how large each of up to 1,024 partitions is and where it lies.
//! Values then go by RPC WRITE, or by plain WRITE through the receive kernel, into a buffer of 16
//! values for each partition, from which they are written to their partition 128 bytes at a time.
//! At the end of each message what is left in the buffers is written, too.

use std::sync::{Arc, Mutex, PoisonError};

use super::column::Rows;
use super::reader::{Reader, require};
use crate::kernel::{CallStatus, Context, Passing, Tap, TapIo, Verdict};

/// Low bits that choose a partition, at most: 1,024 partitions.
pub const BITS_MAX: u8 = 10;
/// Values that a partition's buffer holds.
pub const BUFFER: usize = 16;
/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 16;
/// Bytes of a [`Partition`] in a histogram.
pub const PARTITION_LEN: usize = 16;

/// What a call asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Ask {
    /// The payload is a histogram: [`Partition`]s, 2^bits of them.
    Histogram = 0,
    /// The payload is values.
    Values = 1,
    /// Report only.
    Report = 2,
}

/// A call's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// What is asked.
    pub ask: Ask,
    /// For a histogram: low bits that choose the partition.
    pub bits: u8,
    /// Which histogram: several may be used at once.
    pub session: u32,
}

impl Params {
    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`].
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

/// A partition: where it lies, how many values fit; address u64, values u64 in a histogram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Address, in granted memory.
    pub address: u64,
    /// Values that fit.
    pub values: u64,
}

impl Partition {
    /// Partitions of these sizes, one behind the other from `address` on: a histogram's bytes.
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

/// Partitions, at most.
const PARTITIONS: usize = 1 << BITS_MAX;

/// A partition at work.
#[derive(Clone, Copy, Debug)]
struct Slot {
    next: u64,
    left: u64,
    /// Where the first value lies that was not written yet.
    first: u16,
}

/// What each value touches. As many as there can be, so that nothing has to be asked before.
///
/// A partition's buffer is the image of a block of memory, so that each block but the first and the
/// last is written whole, and no line of the cache twice.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Buffers {
    /// The partitions' buffers, one behind the other.
    values: [[u8; 8]; PARTITIONS * BUFFER],
    /// Where among them each partition's next value goes.
    next: [u16; PARTITIONS],
}

/// A histogram, and the buffers of its partitions.
#[derive(Clone, Debug)]
pub struct Shuffle {
    slots: Vec<Slot>,
    buffers: Box<Buffers>,
    mask: usize,
    written: u64,
    overflowed: u64,
}

impl Shuffle {
    /// The shuffle that a histogram describes.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`]: not 2^`bits` partitions, or one that no address space holds.
    pub fn new(bits: u8, histogram: &[u8]) -> Result<Shuffle, CallStatus> {
        require(bits <= BITS_MAX && histogram.len() == PARTITION_LEN << bits)?;
        let mut slots = Vec::with_capacity(1 << bits);
        let empty = Buffers { values: [[0; 8]; PARTITIONS * BUFFER], next: [0; PARTITIONS] };
        let mut buffers = Box::new(empty);
        for entry in histogram.chunks_exact(PARTITION_LEN) {
            let mut reader = Reader(entry);
            let (next, left) = (reader.u64()?, reader.u64()?);
            require(left.checked_mul(8).and_then(|len| next.checked_add(len)).is_some())?;
            let first = (slots.len() * BUFFER) as u16 + (next / 8 % BUFFER as u64) as u16;
            buffers.next[slots.len()] = first;
            slots.push(Slot { next, left, first });
        }
        let mask = slots.len() - 1;
        Ok(Shuffle { slots, buffers, mask, written: 0, overflowed: 0 })
    }

    /// Partitions values, whole ones. `write` is given an address, the bytes that belong there, and
    /// how many will follow behind them.
    ///
    /// # Errors
    /// Those of `write`; the values of that buffer are lost.
    pub fn push(
        &mut self,
        values: &[u8],
        mut write: impl FnMut(u64, &[u8], usize) -> Result<(), CallStatus>,
    ) -> Result<(), CallStatus> {
        let mask = self.mask & (PARTITIONS - 1);
        for value in values.as_chunks::<8>().0 {
            let at = u64::from_le_bytes(*value) as usize & mask;
            let next = usize::from(self.buffers.next[at]) % (PARTITIONS * BUFFER);
            self.buffers.values[next] = *value;
            self.buffers.next[at] = next as u16 + 1;
            if (next + 1).is_multiple_of(BUFFER) {
                self.spill(at, &mut write)?;
            }
        }
        Ok(())
    }

    /// Writes what a partition's buffer holds to the partition.
    #[inline(never)]
    fn spill(
        &mut self,
        at: usize,
        write: &mut impl FnMut(u64, &[u8], usize) -> Result<(), CallStatus>,
    ) -> Result<(), CallStatus> {
        let (slot, next) = (&mut self.slots[at], &mut self.buffers.next[at]);
        let values = &self.buffers.values[usize::from(slot.first)..usize::from(*next)];
        // Behind a full buffer comes the next partition's.
        *next = (at * BUFFER) as u16 + *next % BUFFER as u16;
        slot.first = *next;
        let fits = slot.left.min(values.len() as u64);
        let to = slot.next;
        slot.next = slot.next.wrapping_add(fits * 8);
        slot.left -= fits;
        self.written += fits;
        let values = if fits == values.len() as u64 {
            values
        } else {
            self.overflowed += values.len() as u64 - fits;
            &values[..fits as usize]
        };
        if values.is_empty() {
            return Ok(());
        }
        write(to, values.as_flattened(), slot.left.min(BUFFER as u64) as usize * 8)
    }

    /// Writes what is left in the buffers.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn flush(
        &mut self,
        mut write: impl FnMut(u64, &[u8], usize) -> Result<(), CallStatus>,
    ) -> Result<(), CallStatus> {
        for at in 0..self.slots.len() {
            if self.buffers.next[at] > self.slots[at].first {
                self.spill(at, &mut write)?;
            }
        }
        Ok(())
    }

    /// Values written to partitions, and values that did not fit.
    pub fn counts(&self) -> (u64, u64) {
        (self.written, self.overflowed)
    }
}

/// Histograms at once, at most.
const SESSIONS_MAX: usize = 64;

/// The kernel, by RPC WRITE and as a receive kernel.
#[derive(Clone, Debug, Default)]
pub struct Shuffles {
    sessions: Arc<Mutex<Vec<(u32, Shuffle)>>>,
}

impl Shuffles {
    /// A kernel without a histogram.
    pub fn new() -> Shuffles {
        Shuffles::default()
    }

    /// Lets the host, or a kernel, use a session's shuffle.
    pub fn with<R>(&self, session: u32, act: impl FnOnce(&mut Shuffle) -> R) -> Option<R> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.iter_mut().find(|(id, _)| *id == session).map(|(_, shuffle)| act(shuffle))
    }

    /// Begins a session, or begins it anew.
    ///
    /// # Errors
    /// [`CallStatus::MEMORY`]: there are too many.
    pub fn begin(&self, session: u32, shuffle: Shuffle) -> Result<(), CallStatus> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        match sessions.iter().position(|(id, _)| *id == session) {
            Some(at) => sessions[at].1 = shuffle,
            None if sessions.len() < SESSIONS_MAX => sessions.push((session, shuffle)),
            None => return Err(CallStatus::MEMORY),
        }
        Ok(())
    }

    /// One invocation. The result is values written u64 and values that did not fit u64, both
    /// since the histogram.
    ///
    /// # Errors
    /// [`CallStatus::NOT_FOUND`]: no histogram was sent; [`CallStatus::TOO_LONG`]: values did not
    /// fit their partition.
    pub async fn run(self, context: Context) -> Result<(), CallStatus> {
        let Params { ask, bits, session } = context.params(Params::parse).await?;
        match ask {
            Ask::Histogram => self.histogram(context, session, bits).await?,
            Ask::Values => self.values(context, session).await?,
            Ask::Report => {}
        }
        let (written, overflowed) =
            self.with(session, |shuffle| shuffle.counts()).ok_or(CallStatus::NOT_FOUND)?;
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
        self.begin(session, Shuffle::new(bits, &histogram)?)
    }

    async fn values(&self, context: Context, session: u32) -> Result<(), CallStatus> {
        let mut rows = Rows::new(8);
        loop {
            let more = context.payload(|piece, port| {
                let (mut result, mut out) = (Ok(()), port.scatter());
                let known = self.with(session, |shuffle| {
                    rows.push(piece, |values| {
                        if result.is_ok() {
                            result =
                                shuffle.push(values, |to, bytes, more| out.write(to, bytes, more));
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
        // Few enough: a buffer for each partition.
        let mut writes = Vec::new();
        let flushed = self.with(session, |shuffle| {
            shuffle.flush(|to, bytes, _| {
                writes.push((to, bytes.len(), padded(bytes)));
                Ok(())
            })
        });
        flushed.ok_or(CallStatus::NOT_FOUND)??;
        for (to, len, bytes) in writes {
            context.write(to, &bytes[..len]).await?;
        }
        Ok(())
    }

    /// The receive kernel: values of plain WRITEs go to their partitions instead of where the
    /// WRITE says.
    pub fn tap(&self, session: u32) -> Box<dyn Tap> {
        Box::new(ShuffleTap { shuffles: self.clone(), session })
    }
}

/// A buffer's bytes, padded.
fn padded(bytes: &[u8]) -> [u8; BUFFER * 8] {
    let mut out = [0; BUFFER * 8];
    let len = bytes.len().min(out.len());
    out[..len].copy_from_slice(&bytes[..len]);
    out
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
        let taken = self.shuffles.with(self.session, |shuffle| {
            shuffle.push(bytes, |to, bytes, more| out.write(to, bytes, more))?;
            if passing.ends(bytes.len()) {
                shuffle.flush(|to, bytes, more| out.write(to, bytes, more))?;
            }
            Ok::<_, CallStatus>(())
        });
        // Without a histogram, or where a partition is gone, data goes where it was to go.
        if taken == Some(Ok(())) { Verdict::Take } else { Verdict::Pass }
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
            let mut write = |to: u64, bytes: &[u8], _| {
                memory[to as usize..][..bytes.len()].copy_from_slice(bytes);
                Ok(())
            };
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            shuffle.push(&bytes, &mut write).unwrap();
            shuffle.flush(&mut write).unwrap();
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
