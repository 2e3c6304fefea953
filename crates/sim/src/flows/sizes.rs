//! Distributions of flow sizes.

use thiserror::Error;

use crate::dice::SplitMix;

/// How long flows are: a list of lengths with the probability that a flow is not longer.
///
/// There are two kinds. In steps, a flow has one of the lengths of the list: interpolating would
/// give another mean, of Cache_Follower 687,657 bytes instead of the 718,205 that its source
/// states. With lines between the points, as the files of HPCC's generator have it, all lengths
/// between two of the list are as likely.
#[derive(Clone, PartialEq, Debug)]
pub struct Sizes {
    /// Rising in both.
    steps: Vec<(u64, f64)>,
    has_lines: bool,
}

/// Why a list is no distribution.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SizesError {
    /// A line has not two numbers.
    #[error("line {line}: \"{text}\" is not a length in bytes and a probability")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// What it has.
        text: String,
    },
    /// A length or a probability is less than the one before, or out of bounds.
    #[error("line {line}: lengths rise from 1 on, and probabilities from 0 to 1")]
    Order {
        /// The line, counted from 1.
        line: usize,
    },
    /// The last probability is neither 1 nor 100 %.
    #[error("the last probability is not 1 (or 100), so that some flows would have no length")]
    End,
}

/// Cache_Follower, as SRNIC §6.3 uses it. The file says where it comes from.
const CACHE_FOLLOWER: &str = include_str!("data/cache_follower.txt");

/// The others, of HPCC's generator. Each file says where it comes from.
const WEB_SEARCH: &str = include_str!("data/web_search.txt");
const HADOOP: &str = include_str!("data/hadoop.txt");
const ALI_STORAGE: &str = include_str!("data/ali_storage.txt");

impl Sizes {
    /// The names of the distributions that are built in.
    pub const NAMES: [&str; 4] = ["cache-follower", "web-search", "hadoop", "ali-storage"];

    /// A distribution that is built in.
    pub fn named(name: &str) -> Option<Sizes> {
        let text = match name {
            "cache-follower" => CACHE_FOLLOWER,
            "web-search" => WEB_SEARCH,
            "hadoop" => HADOOP,
            "ali-storage" => ALI_STORAGE,
            _ => return None,
        };
        Sizes::parse(text).ok()
    }

    /// All flows have this length in bytes.
    ///
    /// # Panics
    /// If that is zero.
    pub fn fixed(bytes: u64) -> Sizes {
        assert!(bytes > 0, "a flow has at least one byte");
        Sizes { steps: vec![(bytes, 1.0)], has_lines: false }
    }

    /// The sizes of Facebook's Cache_Follower (SRNIC §6.3).
    ///
    /// # Panics
    /// Never: the file that is built in is well-formed, as a test says.
    pub fn cache_follower() -> Sizes {
        Sizes::parse(CACHE_FOLLOWER).expect("the built-in distribution is well-formed")
    }

    /// Reads a distribution: on each line a length in bytes and the probability that a flow is not
    /// longer, up to 1. If it is up to 100, it is in per cent, and there are lines between the
    /// points. Empty lines and lines that begin with # do not count.
    ///
    /// # Errors
    /// If a line is something else, or the probabilities do not rise to 1 or 100.
    pub fn parse(text: &str) -> Result<Sizes, SizesError> {
        let mut steps: Vec<(u64, f64)> = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let mut words = text.split_whitespace();
            let Some(first) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            let bytes = first.parse().ok();
            let until = words.next().and_then(|word| word.parse().ok());
            let (Some(bytes), Some(until), None) = (bytes, until, words.next()) else {
                return Err(SizesError::Line { line, text: text.to_owned() });
            };
            let last = steps.last().copied().unwrap_or((0, 0.0));
            // Lines begin where no flow is shorter.
            let is_origin = steps.is_empty() && until == 0.0;
            if (bytes <= last.0 && !is_origin) || !(last.1..=100.0).contains(&until) {
                return Err(SizesError::Order { line });
            }
            steps.push((bytes, until));
        }
        let first = steps.first().is_some_and(|(bytes, _)| *bytes > 0);
        match steps.last() {
            Some((_, 1.0)) if first => Ok(Sizes { steps, has_lines: false }),
            Some((_, 100.0)) => {
                steps.iter_mut().for_each(|(_, until)| *until /= 100.0);
                Ok(Sizes { steps, has_lines: true })
            }
            _ => Err(SizesError::End),
        }
    }

    /// The mean length in bytes. That flows have at least a byte, and a whole number of them, is
    /// not in it.
    pub fn mean(&self) -> f64 {
        let before = core::iter::once((0, 0.0)).chain(self.steps.iter().copied());
        let mean = |((to, until), (from, before)): (&(u64, f64), (u64, f64))| {
            let length = if self.has_lines { (from + to) as f64 / 2.0 } else { *to as f64 };
            length * (until - before)
        };
        self.steps.iter().zip(before).map(mean).sum()
    }

    /// The longest length in bytes.
    pub fn longest(&self) -> u64 {
        self.steps.last().map_or(0, |(bytes, _)| *bytes)
    }

    /// A random length in bytes.
    pub fn draw(&self, random: &mut SplitMix) -> u64 {
        let at = random.fraction();
        let step = self.steps.partition_point(|(_, until)| *until <= at).min(self.steps.len() - 1);
        let (to, until) = self.steps[step];
        if !self.has_lines {
            return to;
        }
        let (from, before) = if step == 0 { (0, 0.0) } else { self.steps[step - 1] };
        let part = (at - before) / (until - before);
        (from + (part * (to - from) as f64) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_follower_has_the_mean_that_its_source_states() {
        let sizes = Sizes::cache_follower();
        assert!((sizes.mean() - 718_204.9).abs() < 0.1, "{}", sizes.mean());
        let mut random = SplitMix::new(3);
        let n = 200_000;
        let drawn: f64 = (0..n).map(|_| sizes.draw(&mut random) as f64).sum();
        assert!((drawn / f64::from(n) / sizes.mean() - 1.0).abs() < 0.01);
    }

    /// The means that HPCC's `getAvg` computes for its files.
    #[test]
    fn lines_between_points_have_the_mean_of_their_source() {
        for (name, mean) in
            [("web-search", 1_711_250.0), ("hadoop", 120_420.75), ("ali-storage", 40_869.8)]
        {
            let sizes = Sizes::named(name).unwrap();
            assert!((sizes.mean() / mean - 1.0).abs() < 1e-6, "{name}: {}", sizes.mean());
            let mut random = SplitMix::new(3);
            let drawn: f64 = (0..300_000).map(|_| sizes.draw(&mut random) as f64).sum();
            assert!((drawn / 300_000.0 / mean - 1.0).abs() < 0.02, "{name}: {drawn}");
        }
        assert!(Sizes::NAMES.iter().all(|name| Sizes::named(name).is_some()));
    }

    #[test]
    fn what_is_no_distribution_is_refused_with_its_line() {
        let line = |text: &str| Sizes::parse(text).unwrap_err();
        assert_eq!(line("10 0.5\n# more\n20 x"), SizesError::Line { line: 3, text: "20 x".into() });
        assert!(matches!(line("10 0.5 1"), SizesError::Line { line: 1, .. }));
        assert!(matches!(line("-1 0.5"), SizesError::Line { line: 1, .. }));
        for text in ["10 0.5\n10 1", "10 0.5\n20 0.4", "10 101", "10 NaN", "0 1"] {
            assert!(matches!(line(text), SizesError::Order { .. }), "{text}");
        }
        assert_eq!((line("10 0.5"), line("")), (SizesError::End, SizesError::End));
        assert_eq!((line("10 1.5"), line("0 0\n10 1")), (SizesError::End, SizesError::End));
        assert_eq!(Sizes::parse("\n# all\n7 1\n").unwrap(), Sizes::fixed(7));
    }
}
