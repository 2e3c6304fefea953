//! Regular expressions as automata without backtracking: a byte of text takes one step.
//!
//! A pattern becomes a deterministic automaton when a selection begins, and is refused if that
//! would be too large. So a row costs time in proportion to its length, whatever the pattern; and a
//! pattern costs at most what its limits allow.

use std::fmt;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};
use thiserror::Error;

/// The most bytes of an automaton.
pub const AUTOMATON_MAX: usize = 1 << 19;
/// The most bytes of what an automaton is made from.
const NFA_MAX: usize = 1 << 17;
/// The most brackets of a pattern that stand within each other.
const NEST_MAX: u32 = 64;

/// A regular expression.
#[derive(Clone)]
pub struct Regex {
    automaton: dense::DFA<Vec<u32>>,
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regex").field("bytes", &self.automaton.memory_usage()).finish()
    }
}

/// A pattern cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the pattern cannot be used: {0}")]
pub struct RegexError(String);

impl Regex {
    /// Reads a pattern. Its classes are those of ASCII, and `.` is one byte, but for parts within
    /// `(?u:…)`.
    ///
    /// # Errors
    /// The pattern is none, or its automaton would be larger than [`AUTOMATON_MAX`].
    pub fn new(pattern: &str) -> Result<Regex, RegexError> {
        let syntax = syntax::Config::new().unicode(false).utf8(false).nest_limit(NEST_MAX);
        Regex::build(pattern, syntax)
    }

    /// An automaton for all of a text, with characters of UTF-8.
    pub(super) fn whole(pattern: &str) -> Result<Regex, RegexError> {
        let syntax = syntax::Config::new().unicode(false).utf8(false).dot_matches_new_line(true);
        Regex::build(&format!("^(?:{pattern})$"), syntax)
    }

    fn build(pattern: &str, syntax: syntax::Config) -> Result<Regex, RegexError> {
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Unanchored)
            .dfa_size_limit(Some(AUTOMATON_MAX))
            .determinize_size_limit(Some(AUTOMATON_MAX));
        let nfa = thompson::Config::new()
            .utf8(false)
            .nfa_size_limit(Some(NFA_MAX))
            .which_captures(thompson::WhichCaptures::None);
        let automaton = dense::Builder::new()
            .configure(config)
            .thompson(nfa)
            .syntax(syntax)
            .build(pattern)
            .map_err(|error| RegexError(reason(&error)))?;
        Ok(Regex { automaton })
    }

    /// Whether the pattern matches somewhere in a text.
    #[inline]
    pub fn is_match(&self, text: &[u8]) -> bool {
        let input = Input::new(text).anchored(Anchored::No).earliest(true);
        // The automaton is made with no byte at which it would give up.
        self.automaton.try_search_fwd(&input).is_ok_and(|found| found.is_some())
    }
}

/// What is wrong with a pattern, in one line.
fn reason(error: &dense::BuildError) -> String {
    use std::error::Error;
    let mut deepest: &dyn Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    // The parser of patterns shows them with a mark below; its last line says why.
    let shown = deepest.to_string();
    if error.is_size_limit_exceeded() || shown.contains("exceeded limit") {
        let hint = "make repetitions shorter";
        return format!("its automaton would have more than {AUTOMATON_MAX} bytes; {hint}");
    }
    let last = shown.lines().last().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_anywhere() {
        let cases = [
            ("b+c", "abbcd", true),
            ("^b", "ab", false),
            ("b$", "ab", true),
            (r"\d{4}-\d\d", "on 1994-01-31", true),
            ("(?i)SPECIAL.*requests", "some special, odd requests", true),
            (r"\bcat\b", "concat cat", true),
            (r"\bcat\b", "concat", false),
            ("", "", true),
            ("(?u:^[äö]$)", "ö", true),
            ("a.c", "a\nc", false),
        ];
        for (pattern, text, matches) in cases {
            let regex = Regex::new(pattern).unwrap();
            assert_eq!(regex.is_match(text.as_bytes()), matches, "{pattern} on {text}");
        }
        assert!(Regex::new("^.$").unwrap().is_match(&[0xFF]), "a text need not be UTF-8");
    }

    #[test]
    fn a_pattern_that_is_wrong_or_too_large_is_refused_in_one_line() {
        let cases = [
            ("a(b", "unclosed group"),
            (r"(?:[01]*1[01]{30})", "more than 524288 bytes"),
            ("((a{100}){100}){100}", "more than 524288 bytes"),
            (r"[äö]", "Unicode"),
            ("a.{30}$", "more than 524288 bytes"),
        ];
        for (pattern, says) in cases {
            let error = Regex::new(pattern).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{pattern}: {error}");
        }
        assert!(Regex::new(&"(".repeat(1000)).is_err());
    }
}
