//! Distributions of flow sizes.

use thiserror::Error;

use crate::dice::Mix;

/// How long flows are: a list of lengths with the probability that a flow is not longer. Between
/// two lengths there is nothing: a flow has one of the lengths of the list.
///
/// Interpolating would give other means: of Cache_Follower 687,657 bytes instead of the 718,205
/// that its source states.
#[derive(Clone, PartialEq, Debug)]
pub struct Sizes {
    /// Rising in both.
    steps: Vec<(u64, f64)>,
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
    /// The last probability is not 1.
    #[error("the last probability is not 1, so that some flows would have no length")]
    End,
}

/// Cache_Follower, as SRNIC §6.3 uses it. The file says where it comes from.
const CACHE_FOLLOWER: &str = include_str!("data/cache_follower.txt");

impl Sizes {
    /// All flows have this length in bytes.
    ///
    /// # Panics
    /// If that is zero.
    pub fn fixed(bytes: u64) -> Sizes {
        assert!(bytes > 0, "a flow has at least one byte");
        Sizes { steps: vec![(bytes, 1.0)] }
    }

    /// The sizes of Facebook's Cache_Follower (SRNIC §6.3).
    ///
    /// # Panics
    /// Never: the file that is built in is well-formed, as a test says.
    pub fn cache_follower() -> Sizes {
        Sizes::parse(CACHE_FOLLOWER).expect("the built-in distribution is well-formed")
    }

    /// Reads a distribution: on each line a length in bytes and the probability that a flow is not
    /// longer. Empty lines and lines that begin with # do not count.
    ///
    /// # Errors
    /// If a line is something else, or the probabilities do not rise to 1.
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
            if bytes <= last.0 || !(last.1..=1.0).contains(&until) {
                return Err(SizesError::Order { line });
            }
            steps.push((bytes, until));
        }
        match steps.last() {
            Some((_, 1.0)) => Ok(Sizes { steps }),
            _ => Err(SizesError::End),
        }
    }

    /// The mean length in bytes.
    pub fn mean(&self) -> f64 {
        let before = core::iter::once(0.0).chain(self.steps.iter().map(|(_, until)| *until));
        let each = self.steps.iter().zip(before);
        each.map(|((bytes, until), before)| *bytes as f64 * (until - before)).sum()
    }

    /// A random length in bytes.
    pub fn draw(&self, random: &mut Mix) -> u64 {
        let at = random.fraction();
        let step = self.steps.partition_point(|(_, until)| *until <= at);
        self.steps[step.min(self.steps.len() - 1)].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_follower_has_the_mean_that_its_source_states() {
        let sizes = Sizes::cache_follower();
        assert!((sizes.mean() - 718_204.9).abs() < 0.1, "{}", sizes.mean());
        let mut random = Mix::new(3);
        let n = 200_000;
        let drawn: f64 = (0..n).map(|_| sizes.draw(&mut random) as f64).sum();
        assert!((drawn / f64::from(n) / sizes.mean() - 1.0).abs() < 0.01);
    }

    #[test]
    fn what_is_no_distribution_is_refused_with_its_line() {
        let line = |text: &str| Sizes::parse(text).unwrap_err();
        assert_eq!(line("10 0.5\n# more\n20 x"), SizesError::Line { line: 3, text: "20 x".into() });
        assert!(matches!(line("10 0.5 1"), SizesError::Line { line: 1, .. }));
        assert!(matches!(line("-1 0.5"), SizesError::Line { line: 1, .. }));
        for text in ["10 0.5\n10 1", "10 0.5\n20 0.4", "10 1.5", "10 NaN", "0 1"] {
            assert!(matches!(line(text), SizesError::Order { .. }), "{text}");
        }
        assert_eq!((line("10 0.5"), line("")), (SizesError::End, SizesError::End));
        assert_eq!(Sizes::parse("\n# all\n7 1\n").unwrap(), Sizes::fixed(7));
    }
}
