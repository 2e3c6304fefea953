//! How a failure is told to a person.

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
    fn each_cause_is_told_once() {
        let error = TellsItsCause { source: io::Error::other("no such thing") };
        let error = Err::<(), _>(error).context("cannot begin").unwrap_err();
        assert_eq!(told(&error), "cannot begin: cannot open x: no such thing");
        let error = Err::<(), _>(io::Error::other("why")).context("what").unwrap_err();
        assert_eq!(told(&error), "what: why");
    }
}
