//! HyperLogLog: estimates the number of distinct values in a stream while it is written (StRoM
//! §7.2).
//!
//! The sketch is Flajolet's, with 64-bit hashes; the estimate is Ertl's ("New cardinality
//! estimation algorithms for HyperLogLog sketches", 2017), which needs no corrections for small or
//! large numbers. Its standard error is 1.04/√m for m registers.

use multiversion::multiversion;
use std::sync::{Arc, Mutex, PoisonError};

use super::column::Rows;
use super::reader::{Reader, require};
use crate::kernel::{CallStatus, Context, Passing, Tap, TapIo, Verdict};

/// The fewest bits of a hash that choose a register.
pub const PRECISION_MIN: u8 = 4;
/// The most bits of a hash that choose a register.
pub const PRECISION_MAX: u8 = 16;
/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 16;
/// Bytes of a [`Report`].
pub const REPORT_LEN: usize = 24;

/// A sketch: the registers, and the number of values seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sketch {
    /// As many registers as any precision needs, so that an index needs no check. The first
    /// 2^`precision` are used.
    registers: Box<[u8; REGISTERS]>,
    precision: u8,
    /// The number of values seen.
    count: u64,
}

/// The most registers of a sketch.
const REGISTERS: usize = 1 << PRECISION_MAX;
/// The number of values that are hashed at a time.
const LANES: usize = 128;

/// Computes each value's register and rank.
///
/// The loop has no branches and no other memory, so the compiler vectorises it: eight values at a
/// time on processors that have such vectors, which the program finds out at run time.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512cd+avx512bw", "x86_64+avx2"))]
fn place(values: &[[u8; 8]], precision: u8, places: &mut [u16], ranks: &mut [u8]) {
    let (end, mask) = (1 << (64 - precision), (1 << precision) - 1);
    for ((value, place), rank) in values.iter().zip(places).zip(ranks) {
        let hash = hash(u64::from_le_bytes(*value).wrapping_add(0x9E37_79B9_7F4A_7C15));
        // The low bits choose the register, and the rank counts the zeroes at the low end of the
        // others. The bit `end` stops the count if all of them are zero. The lowest set bit is
        // isolated because vectors can count only leading zeroes.
        let rest = (hash >> precision) | end;
        let lowest = rest & rest.wrapping_neg();
        *place = (hash & mask) as u16;
        *rank = 64 - lowest.leading_zeros() as u8;
    }
}

/// A hash in which every bit depends on every bit of the value (the finaliser of SplitMix64).
#[inline(always)]
fn hash(value: u64) -> u64 {
    let a = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let b = (a ^ a >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    b ^ b >> 31
}

impl Sketch {
    /// An empty sketch of 2^`precision` registers. A precision outside [`PRECISION_MIN`] to
    /// [`PRECISION_MAX`] becomes the nearest one inside.
    pub fn new(precision: u8) -> Sketch {
        let precision = precision.clamp(PRECISION_MIN, PRECISION_MAX);
        Sketch { registers: Box::new([0; REGISTERS]), precision, count: 0 }
    }

    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.add_all(&value.to_le_bytes());
    }

    /// Adds 8-byte little-endian values that lie one after the other. Ignores an incomplete last
    /// value.
    pub fn add_all(&mut self, values: &[u8]) {
        let (values, _) = values.as_chunks::<8>();
        self.count += values.len() as u64;
        let (mut places, mut ranks) = ([0; LANES], [0; LANES]);
        for values in values.chunks(LANES) {
            let (places, ranks) = (&mut places[..values.len()], &mut ranks[..values.len()]);
            place(values, self.precision, places, ranks);
            for (place, rank) in places.iter().zip(ranks) {
                let register = &mut self.registers[usize::from(*place)];
                // The branch is rare once the sketch has seen some values.
                if *register < *rank {
                    *register = *rank;
                }
            }
        }
    }

    /// Adds what another sketch of the same precision has seen. Returns false, and changes
    /// nothing, if the registers are not those of such a sketch.
    pub fn merge(&mut self, registers: &[u8], count: u64) -> bool {
        let highest = 64 - self.precision + 1;
        let fits = registers.len() == self.registers().len()
            && registers.iter().all(|rank| *rank <= highest);
        if fits {
            self.count = self.count.saturating_add(count);
            for (mine, theirs) in self.registers.iter_mut().zip(registers) {
                *mine = (*mine).max(*theirs);
            }
        }
        fits
    }

    /// The registers, one byte each.
    pub fn registers(&self) -> &[u8] {
        &self.registers[..1 << self.precision]
    }

    /// The number of values seen, distinct or not.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The standard error of the estimate, as a fraction of it.
    pub fn error(&self) -> f64 {
        1.04 / (self.registers().len() as f64).sqrt()
    }

    /// The estimated number of distinct values.
    pub fn estimate(&self) -> f64 {
        let q = usize::from(64 - self.precision);
        let mut counts = [0u32; 66];
        for register in self.registers() {
            counts[usize::from(*register)] += 1;
        }
        let m = self.registers().len() as f64;
        let mut z = m * tau(1.0 - f64::from(counts[q + 1]) / m);
        for k in (1..=q).rev() {
            z = 0.5 * (z + f64::from(counts[k]));
        }
        z += m * sigma(f64::from(counts[0]) / m);
        m * m / (2.0 * core::f64::consts::LN_2 * z)
    }
}

fn sigma(x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut x, mut y, mut z) = (x, 1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

fn tau(x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut x, mut y, mut z) = (x, 1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Ask {
    /// Empties the sketch and sets its precision, adds the payload, and reports.
    Reset = 0,
    /// Adds the payload, which may be empty, and reports.
    Add = 1,
    /// Merges the count and the registers in the payload into the sketch, and reports.
    Merge = 2,
    /// Reports, and appends the registers to the report.
    Registers = 3,
}

/// A call's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// What the call does.
    pub ask: Ask,
    /// For [`Ask::Reset`]: the new precision.
    pub precision: u8,
    /// For [`Ask::Add`]: the address in granted memory that the payload is written to as well; 0
    /// for none.
    pub store: u64,
}

impl Params {
    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] if the bytes are no valid parameters.
    pub fn parse(bytes: &[u8]) -> Result<Params, CallStatus> {
        let mut reader = Reader(bytes);
        let ask = match reader.u8()? {
            0 => Ask::Reset,
            1 => Ask::Add,
            2 => Ask::Merge,
            3 => Ask::Registers,
            _ => return Err(CallStatus::BAD_PARAMS),
        };
        let precision = reader.u8()?;
        require(ask != Ask::Reset || (PRECISION_MIN..=PRECISION_MAX).contains(&precision))?;
        require(reader.u16()? == 0 && reader.u32()? == 0)?;
        let store = reader.u64()?;
        reader.end()?;
        Ok(Params { ask, precision, store })
    }

    /// The parameters' bytes.
    pub fn to_bytes(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        (out[0], out[1]) = (self.ask as u8, self.precision);
        out[8..].copy_from_slice(&self.store.to_le_bytes());
        out
    }
}

/// What a call returns, 24 bytes: estimate f64, values u64, registers u64, little-endian.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Report {
    /// The estimated number of distinct values.
    pub estimate: f64,
    /// The number of values seen.
    pub count: u64,
    /// The number of registers.
    pub registers: u64,
}

impl Report {
    /// The report's bytes.
    pub fn to_bytes(&self) -> [u8; REPORT_LEN] {
        let mut out = [0; REPORT_LEN];
        out[..8].copy_from_slice(&self.estimate.to_le_bytes());
        out[8..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..].copy_from_slice(&self.registers.to_le_bytes());
        out
    }

    /// Reads a report; `None` if it is too short.
    pub fn parse(bytes: &[u8]) -> Option<Report> {
        let bytes = bytes.get(..REPORT_LEN)?;
        let word = |at| super::reader::word(bytes, at);
        Some(Report { estimate: f64::from_bits(word(0)), count: word(8), registers: word(16) })
    }
}

/// The kernel, called by RPC and RPC WRITE, and as a receive or send kernel. Its clones share one
/// sketch.
#[derive(Clone, Debug)]
pub struct HyperLogLog {
    shared: Arc<Mutex<Sketch>>,
}

impl HyperLogLog {
    /// A kernel with an empty sketch.
    pub fn new(precision: u8) -> HyperLogLog {
        HyperLogLog { shared: Arc::new(Mutex::new(Sketch::new(precision))) }
    }

    /// Calls `look` with the sketch, for the host.
    pub fn with<R>(&self, look: impl FnOnce(&mut Sketch) -> R) -> R {
        look(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs one invocation. The result is a [`Report`].
    ///
    /// # Errors
    /// Those of [`Params::parse`] and of the [`Context`]'s methods.
    pub async fn run(self, context: Context) -> Result<(), CallStatus> {
        let Params { ask, precision, store } = context.params(Params::parse).await?;
        match ask {
            Ask::Reset => self.with(|sketch| *sketch = Sketch::new(precision)),
            Ask::Merge => return self.merge(context).await,
            Ask::Add | Ask::Registers => {}
        }
        let mut rows = Rows::new(8);
        let mut to = store;
        loop {
            let more = context.payload(|piece, port| {
                self.with(|sketch| rows.push(piece, |values| sketch.add_all(values)));
                if store != 0 {
                    port.write(to, piece)?;
                    to = to.wrapping_add(piece.len() as u64);
                }
                Ok(())
            });
            match more.await? {
                Some(result) => result?,
                None => break,
            }
        }
        self.report(context, ask == Ask::Registers).await
    }

    async fn merge(self, context: Context) -> Result<(), CallStatus> {
        let mut theirs = Vec::new();
        // The longest valid payload: a count, and then the registers.
        let most = 8 + (1 << PRECISION_MAX);
        while context
            .payload(|piece, _| theirs.extend_from_slice(&piece[..piece.len().min(most + 1)]))
            .await?
            .is_some()
        {
            require(theirs.len() <= most)?;
        }
        let (count, registers) = theirs.split_first_chunk::<8>().ok_or(CallStatus::BAD_PARAMS)?;
        let count = u64::from_le_bytes(*count);
        require(self.with(|sketch| sketch.merge(registers, count)))?;
        self.report(context, false).await
    }

    async fn report(&self, context: Context, registers: bool) -> Result<(), CallStatus> {
        context
            .output(|out| {
                self.with(|sketch| {
                    let report = Report {
                        estimate: sketch.estimate(),
                        count: sketch.count(),
                        registers: sketch.registers().len() as u64,
                    };
                    out.extend_from_slice(&report.to_bytes());
                    if registers {
                        out.extend_from_slice(sketch.registers());
                    }
                });
            })
            .await
    }

    /// The receive or send kernel: it passes all values on and counts them. No value lies on two
    /// packets, since every path MTU is a multiple of 8.
    pub fn tap(&self) -> Box<dyn Tap> {
        Box::new(self.clone())
    }
}

impl Tap for HyperLogLog {
    fn receiving(
        &mut self,
        _: &mut TapIo<'_, '_>,
        _: &Passing,
        bytes: &[u8],
        _: &mut Vec<u8>,
    ) -> Verdict {
        self.with(|sketch| sketch.add_all(bytes));
        Verdict::Pass
    }

    fn sending(&mut self, passing: &Passing, bytes: &mut [u8]) {
        if !passing.again {
            self.with(|sketch| sketch.add_all(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch(precision: u8, from: u64, to: u64) -> Sketch {
        let mut sketch = Sketch::new(precision);
        (from..to).for_each(|value| sketch.add(value));
        sketch
    }

    #[test]
    fn the_error_is_within_its_bound() {
        // Expect: every estimate is within four standard errors, and two thirds of them are within
        // one, as in a normal distribution.
        let (mut within, mut all) = (0, 0);
        for precision in [8, 12, 14] {
            for n in [1u64, 10, 100, 1000, 2600, 10_000, 41_000, 65_000, 100_000, 300_000] {
                for start in [0, 1 << 32] {
                    let sketch = sketch(precision, start, start + n);
                    let off = (sketch.estimate() / n as f64 - 1.0).abs();
                    assert!(
                        off < 4.0 * sketch.error(),
                        "p {precision} n {n}: relative error {off}"
                    );
                    within += u32::from(off < sketch.error());
                    all += 1;
                }
            }
        }
        assert!(within * 10 >= all * 6, "{within} of {all}");
    }

    #[test]
    fn repeated_values_count_once_and_an_empty_sketch_estimates_zero() {
        let mut once = sketch(12, 0, 5000);
        let before = once.estimate();
        (0..5000).for_each(|value| once.add(value));
        assert_eq!((once.estimate(), once.count()), (before, 10_000));
        assert_eq!(Sketch::new(12).estimate(), 0.0);
    }

    #[test]
    fn merged_sketches_are_the_sketch_of_both_streams() {
        let mut left = sketch(10, 0, 6000);
        let right = sketch(10, 4000, 9000);
        assert!(left.merge(right.registers(), right.count()));
        assert_eq!(left.registers(), sketch(10, 0, 9000).registers());
        assert!(!left.merge(&[0; 512], 0), "registers of another precision are refused");
        assert!(!left.merge(&[99; 1024], 0), "registers with an impossible rank are refused");
    }
}
