//! HyperLogLog: how many distinct values a stream has, found out while it is written (StRoM §7.2).
//!
//! The sketch is Flajolet's, with 64-bit hashes; the estimate is Ertl's ("New cardinality
//! estimation algorithms for HyperLogLog sketches", 2017), which needs no corrections for small or
//! large numbers. Its standard error is 1.04/√m for m registers.

use multiversion::multiversion;
use std::sync::{Arc, Mutex, PoisonError};

use super::column::Rows;
use super::reader::{Reader, require};
use crate::kernel::{CallStatus, Context, Passing, Tap, TapIo, Verdict};

/// Bits of the register's number: at least.
pub const PRECISION_MIN: u8 = 4;
/// Bits of the register's number: at most.
pub const PRECISION_MAX: u8 = 16;
/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 16;
/// Bytes of [`Report`].
pub const REPORT_LEN: usize = 24;

/// A sketch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sketch {
    /// As many as there can be, so that no value's has to be looked for; the first
    /// 2^`precision` are used.
    registers: Box<[u8; REGISTERS]>,
    precision: u8,
    /// Values seen.
    count: u64,
}

/// Registers, at most.
const REGISTERS: usize = 1 << PRECISION_MAX;
/// Values that are hashed at a time.
const LANES: usize = 128;

/// Where each value is noted, and with which rank.
///
/// Without branches or memory besides, so that the compiler makes vectors of it: eight values at a
/// time where the processor has them, which is asked at run time.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512cd+avx512bw", "x86_64+avx2"))]
fn place(values: &[[u8; 8]], precision: u8, places: &mut [u16], ranks: &mut [u8]) {
    let (end, mask) = (1 << (64 - precision), (1 << precision) - 1);
    for ((value, place), rank) in values.iter().zip(places).zip(ranks) {
        let hash = hash(u64::from_le_bytes(*value).wrapping_add(0x9E37_79B9_7F4A_7C15));
        // The low bits choose the register, the others are looked at for zeroes; the bit that is
        // set ends the count where there are only zeroes. The lowest bit that is set, alone, has
        // as many zeroes above it as vectors can count.
        let rest = (hash >> precision) | end;
        let lowest = rest & rest.wrapping_neg();
        *place = (hash & mask) as u16;
        *rank = 64 - lowest.leading_zeros() as u8;
    }
}

/// A hash whose bits all depend on all bits of the value (the finaliser of SplitMix64).
#[inline(always)]
fn hash(value: u64) -> u64 {
    let a = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let b = (a ^ a >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    b ^ b >> 31
}

impl Sketch {
    /// An empty sketch of 2^`precision` registers ([`PRECISION_MIN`] to [`PRECISION_MAX`]; others
    /// are taken for the nearest).
    pub fn new(precision: u8) -> Sketch {
        let precision = precision.clamp(PRECISION_MIN, PRECISION_MAX);
        Sketch { registers: Box::new([0; REGISTERS]), precision, count: 0 }
    }

    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.add_all(&value.to_le_bytes());
    }

    /// Adds values of 8 bytes each, one behind the other; a last part of a value is left out.
    pub fn add_all(&mut self, values: &[u8]) {
        let (values, _) = values.as_chunks::<8>();
        self.count += values.len() as u64;
        let (mut places, mut ranks) = ([0; LANES], [0; LANES]);
        for values in values.chunks(LANES) {
            let (places, ranks) = (&mut places[..values.len()], &mut ranks[..values.len()]);
            place(values, self.precision, places, ranks);
            for (place, rank) in places.iter().zip(ranks) {
                let register = &mut self.registers[usize::from(*place)];
                // Seldom once the sketch has seen some values: a load and a look, as a rule.
                if *register < *rank {
                    *register = *rank;
                }
            }
        }
    }

    /// Adds all that another sketch of the same precision has seen; says whether it could.
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

    /// The registers.
    pub fn registers(&self) -> &[u8] {
        &self.registers[..1 << self.precision]
    }

    /// Values seen, distinct or not.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The standard error of the estimate, as a part of it.
    pub fn error(&self) -> f64 {
        1.04 / (self.registers().len() as f64).sqrt()
    }

    /// How many distinct values, about.
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

/// What a call asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Ask {
    /// Begin anew, with another precision; then add the payload, and report.
    Reset = 0,
    /// Add the payload, if there is any, and report.
    Add = 1,
    /// Merge the registers that the payload holds, and report.
    Merge = 2,
    /// Report, and the registers behind the report.
    Registers = 3,
}

/// A call's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// What is asked.
    pub ask: Ask,
    /// For [`Ask::Reset`]: the precision.
    pub precision: u8,
    /// For [`Ask::Add`]: where the payload goes on to (granted memory), zero for nowhere.
    pub store: u64,
}

impl Params {
    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`].
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

/// What is reported: estimate, values seen, registers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Report {
    /// Distinct values, about.
    pub estimate: f64,
    /// Values.
    pub count: u64,
    /// Registers.
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

/// The kernel, by RPC and RPC WRITE and as a receive or send kernel: all of them share a sketch.
#[derive(Clone, Debug)]
pub struct HyperLogLog {
    shared: Arc<Mutex<Sketch>>,
}

impl HyperLogLog {
    /// A kernel with an empty sketch.
    pub fn new(precision: u8) -> HyperLogLog {
        HyperLogLog { shared: Arc::new(Mutex::new(Sketch::new(precision))) }
    }

    /// Lets the host look at the sketch.
    pub fn with<R>(&self, look: impl FnOnce(&mut Sketch) -> R) -> R {
        look(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One invocation.
    ///
    /// # Errors
    /// See [`CallStatus`].
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
        // As many as the payload of a call can be worth: its count, then registers.
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

    /// The receive or send kernel: values pass, and are counted.
    /// (None lies on two packets: a path MTU is a multiple of 8.)
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
        // Expect: within four standard errors everywhere, and within the standard error for two
        // thirds of the streams: what a normal distribution promises.
        let (mut within, mut all) = (0, 0);
        for precision in [8, 12, 14] {
            for n in [1u64, 10, 100, 1000, 2600, 10_000, 41_000, 65_000, 100_000, 300_000] {
                for start in [0, 1 << 32] {
                    let sketch = sketch(precision, start, start + n);
                    let off = (sketch.estimate() / n as f64 - 1.0).abs();
                    assert!(off < 4.0 * sketch.error(), "p {precision} n {n}: off by {off}");
                    within += u32::from(off < sketch.error());
                    all += 1;
                }
            }
        }
        assert!(within * 10 >= all * 6, "{within} of {all}");
    }

    #[test]
    fn repeated_values_count_once_and_nothing_is_zero() {
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
        assert!(!left.merge(&[0; 512], 0), "of another precision");
        assert!(!left.merge(&[99; 1024], 0), "no rank is so high");
    }
}
