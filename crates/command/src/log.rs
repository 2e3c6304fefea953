//! What a command logs, and how it ends with the reader of its output.

use std::io::{Error, ErrorKind, Write};

use remora::environment::LOG_VARIABLE;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The exit status by which a shell reports that SIGPIPE has ended a program.
const BY_SIGPIPE: i32 = 128 + 13;

/// A program that reads the output may close the pipe early (`remora … | head -n 1`). The command
/// then ends quietly, as other commands do, and with a word where the output cannot be written for
/// another reason, without reporting a panic.
pub fn end_with_the_reader() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>();
        match said.and_then(|said| said.strip_prefix("failed printing to ")) {
            Some(reason) if reason.contains("os error 32") => std::process::exit(BY_SIGPIPE),
            Some(reason) => {
                // (Where nobody reads that either, the status says it.)
                _ = writeln!(std::io::stderr(), "remora: cannot write to {reason}");
                std::process::exit(1);
            }
            None => report(panic),
        }
    }));
}

/// As [`end_with_the_reader`], for an error of standard output that is no panic.
pub(crate) fn end_if_nobody_reads(error: &Error) {
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(BY_SIGPIPE);
    }
}

/// Logs to standard error as [`LOG_VARIABLE`] says; warnings by default.
pub fn start() {
    // A value that names a file is for the verbs library, and not a filter.
    let asked = std::env::var(LOG_VARIABLE).ok().filter(|value| is_level(value));
    let filter = asked.and_then(|value| value.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).init();
}

/// Is this value of `REMORA_LOG` a level, or a filter of levels, rather than a file?
pub fn is_level(value: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    value.split(',').all(|part| {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        LEVELS.contains(&level.to_ascii_lowercase().as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_distinguished_from_files() {
        assert!(is_level("debug") && is_level("WARN") && is_level("remora_nic=trace,info"));
        assert!(!is_level("") && !is_level("run.log") && !is_level("debug:run.log"));
    }
}
