//! Which of the processor's instructions are used: decided once for the process, in one place.
//!
//! Code that gains from wide vectors is compiled for each [`Level`], and [`level`] says which one
//! runs: the highest that the processor has, or a lower one that [`VARIABLE`] names. So the figures
//! of a lesser processor are seen on a greater one, and tests compare the results of all levels.

use std::fmt;
use std::sync::LazyLock;

use thiserror::Error;

/// The environment variable that names the highest level to use.
pub const VARIABLE: &str = "REMORA_CPU";

/// A level of instructions that this processor has.
///
/// On x86-64 the levels are those of its ABI, by their names: `v2` (code for any x86-64), `v3`
/// (AVX2, BMI) and `v4` (AVX-512). Other processors have one level: what their compiler assumes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
// Private inside: a level that the processor lacks cannot be made.
pub struct Level(Tier);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Tier {
    Plain,
    Avx2,
    Avx512,
}

#[cfg(target_arch = "x86_64")]
const TIERS: &[(Tier, &str)] = &[(Tier::Plain, "v2"), (Tier::Avx2, "v3"), (Tier::Avx512, "v4")];
#[cfg(target_arch = "aarch64")]
const TIERS: &[(Tier, &str)] = &[(Tier::Plain, "neon")];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const TIERS: &[(Tier, &str)] = &[(Tier::Plain, "plain")];

/// [`VARIABLE`] names no level.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "{VARIABLE}={named} names no level of this kind of processor: say {}, or unset it",
    names()
)]
pub struct UnknownLevel {
    /// What it names.
    pub named: String,
}

/// The levels' names, for a person.
fn names() -> String {
    let names: Vec<&str> = TIERS.iter().map(|(_, name)| *name).collect();
    names.join(" or ")
}

static CHOSEN: LazyLock<(Level, Option<UnknownLevel>)> = LazyLock::new(|| {
    let named = std::env::var_os(VARIABLE).map(|named| named.to_string_lossy().into_owned());
    match Level::named(named.as_deref().unwrap_or_default()) {
        Ok(level) => (level, None),
        Err(unknown) => (Level::highest(), Some(unknown)),
    }
});

/// The level that this process uses.
#[inline]
pub fn level() -> Level {
    CHOSEN.0
}

/// The level that this process uses.
///
/// # Errors
/// [`VARIABLE`] names no level. [`level`] is then the highest.
pub fn check() -> Result<Level, UnknownLevel> {
    let (level, unknown) = &*CHOSEN;
    unknown.clone().map_or(Ok(*level), Err)
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

    /// The level with this name, or the highest that the processor has, if that is lower. An empty
    /// name is the highest.
    ///
    /// # Errors
    /// There is no such level.
    pub fn named(name: &str) -> Result<Level, UnknownLevel> {
        let highest = Level::highest();
        if name.is_empty() {
            return Ok(highest);
        }
        let found = TIERS.iter().find(|(_, of_tier)| *of_tier == name);
        let unknown = || UnknownLevel { named: name.to_owned() };
        found.map(|(tier, _)| Level(*tier).min(highest)).ok_or_else(unknown)
    }

    /// The level's name.
    pub fn name(self) -> &'static str {
        TIERS.iter().find(|(tier, _)| *tier == self.0).map_or("", |(_, name)| name)
    }

    /// Are there vectors of 256 bits (AVX2)?
    #[inline]
    pub fn has_avx2(self) -> bool {
        self.0 >= Tier::Avx2
    }

    /// Are there vectors of 512 bits that multiply words and count their leading zeroes (AVX-512)?
    #[inline]
    pub fn has_avx512(self) -> bool {
        self.0 >= Tier::Avx512
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
            _ => work.run(self),
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
        f.pad(self.name())
    }
}

/// Work that is compiled for each level.
pub trait Work {
    /// What it results in.
    type Result;

    /// Does the work. An implementation, and what it calls, is marked `#[inline(always)]`: then
    /// the compiler makes vectors of its loops as the level has them, and the questions that it
    /// asks of the level cost nothing.
    fn run(self, level: Level) -> Self::Result;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
fn with_avx2<W: Work>(work: W) -> W::Result {
    work.run(Level(Tier::Avx2))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn with_avx512<W: Work>(work: W) -> W::Result {
    work.run(Level(Tier::Avx512))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_lowered_by_its_name_and_never_raised() {
        let all: Vec<Level> = Level::all().collect();
        assert_eq!(all.last(), Some(&Level::highest()));
        for (tier, name) in TIERS {
            let level = Level::named(name).unwrap();
            assert_eq!(level, Level(*tier).min(Level::highest()));
            assert_eq!(Level::named(level.name()), Ok(level));
        }
        assert_eq!(Level::named(""), Ok(Level::highest()));
        assert_eq!(Level::all().next().unwrap().name(), TIERS[0].1);
    }

    #[test]
    fn a_name_that_is_none_is_refused_in_words() {
        for named in ["v1", "V3", "avx2", "4", " v3"] {
            let said = Level::named(named).unwrap_err().to_string();
            assert!(said.contains(&format!("REMORA_CPU={named} ")), "{said}");
            assert!(said.contains(TIERS[0].1), "{said}");
        }
    }

    #[test]
    fn work_runs_at_each_level() {
        struct Which;
        impl Work for Which {
            type Result = Level;
            #[inline(always)]
            fn run(self, level: Level) -> Level {
                level
            }
        }
        Level::all().for_each(|level| assert_eq!(level.run(Which), level));
    }
}
