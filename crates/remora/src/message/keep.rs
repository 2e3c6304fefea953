//! How the environment asks that a session outlives its program.

use std::env;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

use super::{Keep, NAME_MAX, is_session_name};
use crate::environment;
use crate::text::printable;

/// The environment variable that has a program's session kept: `NAME`, or `NAME:TIME`.
pub const KEEP_VARIABLE: &str = "REMORA_KEEP";
/// The environment variable that, if it is not empty, ends a session of that name which a program
/// has left, before the next one begins.
pub const ANEW_VARIABLE: &str = "REMORA_ANEW";

/// A session that outlives its program: its name, and for how long.
///
/// As text it is `NAME` (for ever), or `NAME:TIME` with a time as `60s`, `5m`, `2h` or `forever`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The session's name.
    pub name: String,
    /// For how long it is kept.
    pub keep: Keep,
}

/// Why a text does not say how a session is kept.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BadKeep {
    /// The name cannot be one.
    #[error(
        "`{}` cannot be a session’s name: it has 1 to {NAME_MAX} bytes, without colons and \
         characters that a terminal does not show",
        printable(.0)
    )]
    Name(String),
    /// The time cannot be read.
    #[error("`{0}` is no time: write for example 60s, 5m, 2h or forever")]
    Time(String),
}

impl FromStr for Kept {
    type Err = BadKeep;

    fn from_str(text: &str) -> Result<Kept, BadKeep> {
        let (name, time) = text.split_once(':').unwrap_or((text, "forever"));
        if !is_session_name(name) {
            return Err(BadKeep::Name(name.into()));
        }
        let keep = parse_time(time).ok_or_else(|| BadKeep::Time(time.into()))?;
        Ok(Kept { name: name.into(), keep })
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.keep {
            Keep::No => write!(f, "{}:0s", self.name),
            Keep::Seconds(seconds) => write!(f, "{}:{seconds}s", self.name),
            Keep::Forever => write!(f, "{}", self.name),
        }
    }
}

/// The time of `60s`, `5m`, `2h` or `forever`.
fn parse_time(text: &str) -> Option<Keep> {
    if text == "forever" {
        return Some(Keep::Forever);
    }
    let unit = text.chars().next_back()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => return None,
    };
    let count = text[..text.len() - unit.len_utf8()].parse::<u32>().ok()?;
    Some(Keep::Seconds(count.checked_mul(seconds)?))
}

impl Kept {
    /// What [`KEEP_VARIABLE`] asks for; `None` if it is not set.
    ///
    /// # Errors
    /// It cannot be understood.
    pub fn from_environment() -> Result<Option<Kept>, BadKeep> {
        let text = environment::text(KEEP_VARIABLE);
        if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
    }
}

/// What the next session of this process is called: by the name that was asked for, or the
/// program's name and process number, and from the second one on a number.
pub(crate) fn session_name(kept: Option<&Kept>) -> String {
    static SESSIONS: AtomicU32 = AtomicU32::new(1);
    let number = SESSIONS.fetch_add(1, Ordering::Relaxed);
    match kept {
        Some(kept) if number == 1 => return kept.name.clone(),
        Some(kept) => return format!("{}-{number}", kept.name),
        None => {}
    }
    let program = env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).unwrap_or("program".as_ref());
    let mut program = printable(&program.to_string_lossy());
    program.truncate((0..=32).rev().find(|at| program.is_char_boundary(*at)).unwrap_or(0));
    match (std::process::id(), number) {
        (pid, 1) => format!("{program}-{pid}"),
        (pid, number) => format!("{program}-{pid}-{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_time() {
        let kept = |name: &str, keep| Ok(Kept { name: name.into(), keep });
        assert_eq!("store".parse(), kept("store", Keep::Forever));
        assert_eq!("store:forever".parse(), kept("store", Keep::Forever));
        assert_eq!("rank 0:60s".parse(), kept("rank 0", Keep::Seconds(60)));
        assert_eq!("x:5m".parse(), kept("x", Keep::Seconds(300)));
        assert_eq!("x:2h".parse(), kept("x", Keep::Seconds(7200)));
        for text in ["store", "rank 0:60s"] {
            assert_eq!(text.parse::<Kept>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for text in ["x:", "x:5", "x:5d", "x:-1s", "x:s", "x:5ü", "x:9999999h", "x:1s:2s"] {
            let error = text.parse::<Kept>().unwrap_err();
            assert!(matches!(error, BadKeep::Time(_)), "{text}");
        }
        let long = "x".repeat(NAME_MAX + 1);
        for text in ["", ":5s", "a\nb", "\u{202e}evil", &long] {
            let error = text.parse::<Kept>().unwrap_err();
            assert!(matches!(error, BadKeep::Name(_)), "{text}");
            assert!(!error.to_string().contains(['\n', '\u{202e}']), "{error}");
        }
    }
}
