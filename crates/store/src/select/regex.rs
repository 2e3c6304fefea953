//! Regular expressions as automata without backtracking: a byte of text takes one step.
//!
//! A pattern becomes a deterministic automaton when a selection begins, and is refused if that
//! would be too large, or take too long to make. So a row costs time in proportion to its length,
//! whatever the pattern; and a pattern costs at most what its limits allow.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::{self, NFA, State};
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};
use thiserror::Error;

use super::recent::Recent;

/// The most bytes of an automaton.
pub const AUTOMATON_MAX: usize = 1 << 19;
/// The most bytes of what an automaton is made from.
const NFA_MAX: usize = 1 << 16;
/// The steps in which an automaton is made, at most about. Each takes some 10 ns.
const STEPS_MAX: usize = 3 << 20;
/// The most brackets of a pattern that stand within each other.
const NEST_MAX: u32 = 64;
/// The most automata that are kept.
const KEPT_MAX: usize = 16;

/// The automata that were made last. A predicate is bound and then planned, and a walk does so with
/// each of its steps: only the first time makes them.
static KEPT: Mutex<Recent<Regex>> = Mutex::new(Recent::new(KEPT_MAX));

fn kept() -> MutexGuard<'static, Recent<Regex>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A regular expression.
#[derive(Clone)]
pub struct Regex {
    automaton: Arc<dense::DFA<Vec<u32>>>,
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
    /// The pattern is none, or its automaton would be larger than [`AUTOMATON_MAX`], or take too
    /// long to make.
    pub fn new(pattern: &str) -> Result<Regex, RegexError> {
        if let Some(regex) = kept().find(pattern.as_bytes()) {
            return Ok(regex);
        }
        let regex = Regex::make(pattern)?;
        kept().keep(pattern.as_bytes(), regex.clone());
        Ok(regex)
    }

    /// An automaton for all of a text, in which `.` is any byte.
    pub(super) fn whole(pattern: &str) -> Result<Regex, RegexError> {
        Regex::new(&format!("(?s)^(?:{pattern})$"))
    }

    fn make(pattern: &str) -> Result<Regex, RegexError> {
        let syntax = syntax::Config::new().unicode(false).utf8(false).nest_limit(NEST_MAX);
        let config = thompson::Config::new()
            .utf8(false)
            .nfa_size_limit(Some(NFA_MAX))
            .which_captures(thompson::WhichCaptures::None);
        let nfa = thompson::Compiler::new()
            .configure(config)
            .syntax(syntax)
            .build(pattern)
            .map_err(|error| RegexError(reason(&error)))?;
        let (bytes, sets) = limits(&nfa);
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Unanchored)
            .dfa_size_limit(Some(bytes))
            .determinize_size_limit(Some(sets));
        let automaton = dense::Builder::new()
            .configure(config)
            .build_from_nfa(&nfa)
            .map_err(|error| RegexError(reason(&error)))?;
        Ok(Regex { automaton: Arc::new(automaton) })
    }

    /// Whether the pattern matches somewhere in a text.
    #[inline]
    pub fn is_match(&self, text: &[u8]) -> bool {
        let input = Input::new(text).anchored(Anchored::No).earliest(true);
        // The automaton is made with no byte at which it would give up.
        self.automaton.try_search_fwd(&input).is_ok_and(|found| found.is_some())
    }
}

/// The most bytes of an automaton, and of the sets of states of `nfa` that its states stand for,
/// such that it is made in [`STEPS_MAX`]. To find where a class of bytes leads to from a set, all
/// of the set is gone over, and from there what needs no byte to be gone to.
fn limits(nfa: &NFA) -> (usize, usize) {
    let without_byte = |state: &State| match state {
        State::Union { alternates } => alternates.len(),
        state => usize::from(state.is_epsilon()),
    };
    let free = 1 + nfa.states().iter().map(without_byte).sum::<usize>();
    let bytes = STEPS_MAX / free * size_of::<u32>();
    let sets = STEPS_MAX / nfa.byte_classes().alphabet_len();
    (bytes.min(AUTOMATON_MAX), sets.min(AUTOMATON_MAX))
}

/// What is wrong with a pattern, in one line.
fn reason(error: &dyn Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    // The parser of patterns shows them with a mark below; its last line says why.
    let shown = deepest.to_string();
    let last = shown.lines().last().unwrap_or_default();
    if last.contains("exceeded") {
        let hint = "make repetitions shorter";
        return format!("its automaton would be too large, or take too long to make; {hint}");
    }
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
            ("exceeded(", "unclosed group"),
            (r"(?:[01]*1[01]{30})", TOO_LARGE),
            ("((a{100}){100}){100}", TOO_LARGE),
            (r"[äö]", "Unicode"),
            ("a.{30}$", TOO_LARGE),
        ];
        for (pattern, says) in cases {
            let error = Regex::new(pattern).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{pattern}: {error}");
        }
        assert!(Regex::new(&"(".repeat(1000)).is_err());
    }

    const TOO_LARGE: &str = "too large, or take too long to make";

    /// Patterns of few bytes whose automata are small, but of which each state is some hundred
    /// states of what it is made from.
    #[test]
    fn a_pattern_that_takes_long_to_make_is_refused() {
        let letters: String = ('a'..='z').chain('A'..='Z').chain('0'..='9').collect();
        let maybe: String = letters.chars().flat_map(|letter| [letter, '?']).collect();
        let halves = "[a-m]?[f-z]?".repeat(80);
        for pattern in [format!("(?:{maybe}){{5}}$"), format!("(?:{maybe}){{8}}$"), halves + "$"] {
            let error = Regex::new(&pattern).unwrap_err().to_string();
            assert!(error.contains(TOO_LARGE), "{pattern}: {error}");
        }
        assert!(Regex::new(&format!("(?:{maybe}){{1}}$")).is_ok());
    }

    #[test]
    fn patterns_that_people_write_are_made() {
        let patterns = [
            r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}",
            r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b",
            r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
            r"https?://[\w.-]+(?::\d+)?(?:/[\w./%+-]*)?(?:\?[^#\s]*)?",
            r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?",
            r"(?i)\b(?:alpha|bravo|charlie|delta|echo|foxtrot|golf|hotel)\b.*\d{3,}",
            "^[a-zA-Z0-9_-]{1,255}$",
            "error.*timeout.*retry.*failed",
            "a.{10}$",
        ];
        for pattern in patterns {
            assert!(Regex::new(pattern).is_ok(), "{pattern}");
        }
        let long = "abcdefghij".repeat(100);
        assert!(Regex::new(&long).unwrap().is_match(long.as_bytes()));
    }
}
