//! How a failure is told: to a person in words, to a script by the exit status.

use std::fmt;
use std::process::ExitCode;

use crate::stop::{BY_SIGNAL, Interrupted};

/// The exit status of a command that has tried, and failed.
pub const FAILED: u8 = 1;
/// The exit status of a command whose line asks for what cannot be, whatever the machine, its files
/// and its peers are like: nothing was tried.
pub const WRONG_LINE: u8 = 2;

/// The command line is wrong.
#[derive(Debug)]
struct WrongLine(anyhow::Error);

impl fmt::Display for WrongLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&told(&self.0))
    }
}

impl std::error::Error for WrongLine {}

/// The error of a command whose line is wrong for this reason.
pub fn wrong_line(why: impl Into<anyhow::Error>) -> anyhow::Error {
    WrongLine(why.into()).into()
}

/// The exit status of a command that ends with this error.
pub fn status(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<WrongLine>()) {
        WRONG_LINE
    } else if error.chain().any(|cause| cause.is::<Interrupted>()) {
        BY_SIGNAL
    } else {
        FAILED
    }
}

/// Tells a person why the program of this name fails, and a script by the status.
pub fn report(program: &str, error: &anyhow::Error) -> ExitCode {
    eprintln!("{program}: {}", told(error));
    ExitCode::from(status(error))
}

/// The error, and behind it those of its causes that it does not tell itself, as a terminal may
/// show them: they may name what a peer has sent.
pub fn told(error: &anyhow::Error) -> String {
    let mut words = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !words.contains(&cause) {
            words = format!("{words}: {cause}");
        }
    }
    words.split('\n').map(remora::printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;
    use thiserror::Error;

    use super::*;

    #[derive(Debug, Error)]
    #[error("cannot open x: {source}")]
    struct TellsItsCause {
        source: io::Error,
    }

    #[test]
    fn what_a_peer_sent_does_not_steer_a_terminal() {
        let error = anyhow::anyhow!("there are:\n  db0\x1b[2J, \u{202e}evil");
        assert_eq!(told(&error), "there are:\n  db0?[2J, ?evil");
    }

    #[test]
    fn a_status_says_whose_fault_it_is() {
        let error = || anyhow::anyhow!("why");
        assert_eq!(status(&error()), FAILED);
        let wrong = wrong_line(error()).context("what");
        assert_eq!((status(&wrong), told(&wrong)), (WRONG_LINE, "what: why".into()));
        assert_eq!(status(&anyhow::Error::from(Interrupted).context("a copy")), BY_SIGNAL);
    }

    #[test]
    fn each_cause_is_told_once() {
        let error = TellsItsCause { source: io::Error::other("no such thing") };
        let error = Err::<(), _>(error).context("cannot begin").unwrap_err();
        assert_eq!(told(&error), "cannot begin: cannot open x: no such thing");
        let error = Err::<(), _>(io::Error::other("why")).context("what").unwrap_err();
        assert_eq!(told(&error), "what: why");
    }
}
