//! HyperLogLog: estimates the number of distinct values in a stream while it is written (StRoM
//! §7.2).
//!
//! The sketch is Flajolet's, with 64-bit hashes; the estimate is Ertl's ("New cardinality
//! estimation algorithms for HyperLogLog sketches", 2017), which needs no corrections for small or
//! large numbers. Its standard error is 1.04/√m for m registers.

use std::sync::{Arc, Mutex, PoisonError};

use super::column::Rows;
use super::reader::{Reader, require};
use crate::cpu::{self, Level, Work};
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
#[derive(Clone, Debug)]
pub struct Sketch {
    /// As many registers as any precision needs, so that an index needs no check. The first
    /// 2^`precision` are used.
    registers: Box<[u8; REGISTERS]>,
    precision: u8,
    /// No register is lower.
    floor: u8,
    /// Values until the floor is looked at again.
    unlooked: usize,
    /// The number of values seen.
    count: u64,
}

/// Sketches are equal if they have seen as many values and say the same of them.
impl PartialEq for Sketch {
    fn eq(&self, other: &Sketch) -> bool {
        self.registers() == other.registers() && self.count == other.count
    }
}

impl Eq for Sketch {}

/// The most registers of a sketch.
const REGISTERS: usize = 1 << PRECISION_MAX;
/// The number of values that are hashed at a time.
const LANES: usize = 32;
/// If more of these are above the floor, all are looked at: branches that are hard to predict cost
/// more.
const MANY: u32 = LANES as u32 / 3;
/// A lower floor than this leaves more than [`MANY`] above it.
const FILTERS: u8 = 2;
/// Those above the floor are added so many at a time: where the last one is, is as hard to predict.
const AT_ONCE: usize = 6;

/// A hash of which every high bit depends on every bit of the value (SplitMix64 without its last
/// step, which only changes low bits). The first factor has 32 bits, since vectors without
/// AVX-512 multiply only such.
#[inline(always)]
fn hash(value: [u8; 8]) -> u64 {
    let value = u64::from_le_bytes(value).wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (value ^ value >> 32).wrapping_mul(0x9E37_79B1);
    (mixed ^ mixed >> 29).wrapping_mul(0x94D0_49BB_1331_11EB)
}

/// The values to add to a sketch.
struct Adding<'a> {
    registers: &'a mut [u8; REGISTERS],
    precision: u8,
    floor: u8,
    values: &'a [[u8; 8]],
}

impl Work for Adding<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self, level: Level) {
        let Adding { registers, precision, floor, values } = self;
        // Vectors of 128 bits are no faster at hashes than scalars.
        let lanes = if level.has_avx2() { values } else { &[] };
        let (chunks, rest) = lanes.as_chunks::<LANES>();
        let rest = if level.has_avx2() { rest } else { values };
        // The bits that are zero in each hash whose rank is above the floor.
        let above = !(u64::MAX >> floor) >> precision;
        for chunk in chunks {
            if floor < FILTERS {
                chunk.map(hash).iter().for_each(|hash| raise(registers, precision, *hash));
                continue;
            }
            let (mut hashes, mut marks) = ([0; LANES], 0u64);
            for (i, (hash_of, value)) in hashes.iter_mut().zip(chunk).enumerate() {
                *hash_of = hash(*value);
                marks |= if *hash_of & above == 0 { 1 << i } else { 0 };
            }
            if marks.count_ones() <= MANY {
                while marks != 0 {
                    // Behind the last mark the first hash is added again, which changes nothing.
                    for _ in 0..AT_ONCE {
                        let marked = marks.trailing_zeros() as usize % LANES;
                        raise(registers, precision, hashes[marked]);
                        marks &= marks.wrapping_sub(1);
                    }
                }
            } else {
                hashes.iter().for_each(|hash| raise(registers, precision, *hash));
            }
        }
        rest.iter().for_each(|value| raise(registers, precision, hash(*value)));
    }
}

/// A hash's register: its high bits.
#[inline(always)]
fn place(hash: u64, precision: u8) -> u16 {
    (hash >> (64 - precision)) as u16
}

/// A hash's rank: the zeroes before the first one behind the bits that choose the register, and
/// that one. A guard stops the count if there is none.
#[inline(always)]
fn rank(hash: u64, precision: u8) -> u8 {
    (hash << precision | 1 << (precision - 1)).leading_zeros() as u8 + 1
}

#[inline(always)]
fn raise(registers: &mut [u8; REGISTERS], precision: u8, hash: u64) {
    let register = &mut registers[usize::from(place(hash, precision))];
    let rank = rank(hash, precision);
    // The branch is rare once the sketch has seen some values.
    if *register < rank {
        *register = rank;
    }
}

impl Sketch {
    /// An empty sketch of 2^`precision` registers. A precision outside [`PRECISION_MIN`] to
    /// [`PRECISION_MAX`] becomes the nearest one inside.
    pub fn new(precision: u8) -> Sketch {
        let precision = precision.clamp(PRECISION_MIN, PRECISION_MAX);
        let registers = Box::new([0; REGISTERS]);
        Sketch { registers, precision, floor: 0, unlooked: 0, count: 0 }
    }

    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.add_all(&value.to_le_bytes());
    }

    /// Adds 8-byte little-endian values that lie one after the other. Ignores an incomplete last
    /// value.
    pub fn add_all(&mut self, values: &[u8]) {
        self.add_at(cpu::level(), values);
    }

    fn add_at(&mut self, level: Level, values: &[u8]) {
        let (values, _) = values.as_chunks::<8>();
        self.count = self.count.saturating_add(values.len() as u64);
        let (precision, floor) = (self.precision, self.floor);
        level.run(Adding { registers: &mut self.registers, precision, floor, values });
        self.unlooked = self.unlooked.saturating_sub(values.len());
        if self.unlooked == 0 {
            self.look_at_floor();
        }
    }

    /// Finds the floor again. A look at each register takes a fraction of the time in which as many
    /// values are added, and so is made once in that time.
    fn look_at_floor(&mut self) {
        self.floor = self.registers().iter().fold(u8::MAX, |floor, rank| floor.min(*rank));
        self.unlooked = self.registers().len();
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
            self.look_at_floor();
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

    /// Values of the kinds that columns hold: numbers in a row, with zeroes below or above, numbers
    /// with fractions, texts.
    const KINDS: [fn(u64) -> u64; 8] = [
        |i| i,
        |i| i << 12,
        |i| i << 40,
        |i| i * 1000,
        u64::swap_bytes,
        |i| (i as f64 / 100.0).to_bits(),
        |i| i & 1023 | (i >> 10) << 32,
        |i| u64::from_le_bytes(format!("{i:08}").into_bytes().try_into().unwrap()),
    ];

    #[test]
    fn every_kind_of_value_is_hashed_well() {
        for (kind, value) in KINDS.into_iter().enumerate() {
            // Expect: the mean square of the error in 30 sketches is that of the theory.
            let mut squares = 0.0;
            for start in 0..30u64 {
                let mut sketch = Sketch::new(10);
                (0..20_000).for_each(|i| sketch.add(value(start * 100_003 + i)));
                let off = (sketch.estimate() / 20_000.0 - 1.0) / sketch.error();
                squares += off * off / 30.0;
            }
            assert!(squares < 2.0, "kind {kind}: {squares}");
        }
    }

    /// [`Sketch::add_all`] by its definition.
    fn plain(precision: u8, values: &[u64]) -> Vec<u8> {
        let mut registers = vec![0; 1 << precision];
        for value in values {
            let hash = hash(value.to_le_bytes());
            let rest = hash << precision;
            let rank = if rest == 0 { 65 - precision } else { rest.leading_zeros() as u8 + 1 };
            let register = &mut registers[(hash >> (64 - precision)) as usize];
            *register = rank.max(*register);
        }
        registers
    }

    #[test]
    fn all_levels_count_alike() {
        for precision in [PRECISION_MIN, 5, 8, 12, PRECISION_MAX] {
            // Long enough for floors of every height at the small precisions.
            let values: Vec<u64> = (0..60_000u64).map(|i| i.wrapping_mul(i | 1)).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let expected = plain(precision, &values);
            for level in Level::all() {
                for piece in [8, 8 * 31, 8 * 33, 4096, bytes.len()] {
                    let mut sketch = Sketch::new(precision);
                    bytes.chunks(piece).for_each(|piece| sketch.add_at(level, piece));
                    assert!(sketch.registers() == expected, "{level} {precision} {piece}");
                    assert_eq!(sketch.count(), values.len() as u64);
                }
            }
        }
    }

    #[test]
    fn a_floor_that_a_merge_raised_hides_nothing() {
        for level in Level::all() {
            let (mut sketch, high) = (Sketch::new(4), [9; 16]);
            assert!(sketch.merge(&high, 1));
            let bytes: Vec<u8> = (0..100_000u64).flat_map(u64::to_le_bytes).collect();
            sketch.add_at(level, &bytes);
            let values: Vec<u64> = (0..100_000).collect();
            let expected: Vec<u8> = plain(4, &values).into_iter().map(|rank| rank.max(9)).collect();
            assert_eq!(sketch.registers(), expected);
        }
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
        assert!(left.merge(&[0; 1024], u64::MAX));
        left.add(1);
        assert_eq!(left.count(), u64::MAX, "it does not start again");
        assert!(!left.merge(&[0; 512], 0), "registers of another precision are refused");
        assert!(!left.merge(&[99; 1024], 0), "registers with an impossible rank are refused");
    }
}
