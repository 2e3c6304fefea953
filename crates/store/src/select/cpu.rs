//! Which of the processor's instructions are used, as in `remora-offload`'s `cpu`: the same
//! levels by the same names, and the same variable.
//!
//! This crate does not depend on that one yet. When it does, its module replaces this one.

use std::fmt;
use std::sync::LazyLock;

/// The environment variable that names the highest level to use.
pub const VARIABLE: &str = "REMORA_CPU";

/// A level of instructions that this processor has: `v2`, `v3` (AVX2) and `v4` (AVX-512) on x86-64,
/// and elsewhere one, `plain`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
// Private inside: a level that the processor lacks cannot be made.
pub struct Level(Tier);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Tier {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

#[cfg(target_arch = "x86_64")]
const TIERS: &[(Tier, &str)] = &[(Tier::Plain, "v2"), (Tier::Avx2, "v3"), (Tier::Avx512, "v4")];
#[cfg(not(target_arch = "x86_64"))]
const TIERS: &[(Tier, &str)] = &[(Tier::Plain, "plain")];

static CHOSEN: LazyLock<Level> = LazyLock::new(|| {
    let named = std::env::var(VARIABLE).unwrap_or_default();
    let found = TIERS.iter().find(|(_, name)| *name == named);
    found.map_or(Level::highest(), |(tier, _)| Level(*tier).min(Level::highest()))
});

/// The level that this process uses: the highest, or a lower one that [`VARIABLE`] names.
#[inline]
pub fn level() -> Level {
    *CHOSEN
}

impl Level {
    /// The highest level of this processor.
    pub fn highest() -> Level {
        Level(highest_tier())
    }

    /// All levels of this processor, the lowest first.
    pub fn all() -> impl Iterator<Item = Level> {
        let highest = Level::highest();
        TIERS.iter().map(|(tier, _)| Level(*tier)).filter(move |level| *level <= highest)
    }

    /// Does work with the instructions of this level.
    #[inline]
    pub fn run<W: Work>(self, work: W) -> W::Result {
        match self.0 {
            // SAFETY: a level is made only where the processor has it.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => unsafe { with_avx2(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => unsafe { with_avx512(work) },
            Tier::Plain => work.run(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn highest_tier() -> Tier {
    use std::arch::is_x86_feature_detected as has;
    // What `with_avx2` and `with_avx512` enable.
    let avx2 = has!("avx2") && has!("bmi1") && has!("bmi2") && has!("lzcnt");
    let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512cd");
    let avx512 = avx512 && has!("avx512dq") && has!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Tier::Avx512,
        (true, false) => Tier::Avx2,
        (false, _) => Tier::Plain,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn highest_tier() -> Tier {
    Tier::Plain
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(TIERS.iter().find(|(tier, _)| *tier == self.0).map_or("", |(_, name)| name))
    }
}

/// Work that is compiled for each level.
pub trait Work {
    /// What it results in.
    type Result;

    /// Does the work. An implementation, and what it calls, is marked `#[inline(always)]`: then
    /// the compiler makes vectors of its loops as the level has them.
    fn run(self) -> Self::Result;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
fn with_avx2<W: Work>(work: W) -> W::Result {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn with_avx512<W: Work>(work: W) -> W::Result {
    work.run()
}
