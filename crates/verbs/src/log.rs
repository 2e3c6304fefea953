//! `REMORA_LOG`: what the library logs, and where.
//!
//! | value | effect |
//! |---|---|
//! | unset or empty | errors, on standard error |
//! | a level (`error`, `warn`, `info`, `debug`, `trace`) | that level, on standard error |
//! | a filter such as `remora_nic=trace` | that level of that crate, on standard error |
//! | `PATH` | `debug`, appended to that file |
//! | `LEVEL:PATH` | that level, appended to that file |
//!
//! `%p` in a path becomes the process id.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use remora::environment::{self, LOG_VARIABLE};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

static STARTED: AtomicBool = AtomicBool::new(false);

/// Starts logging, once in a process and its children.
pub(crate) fn start() {
    if STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let value = environment::text(LOG_VARIABLE);
    let (filter, path) = parse(&value);
    let output = match path.map(|path| path.replace("%p", &std::process::id().to_string())) {
        None => Output(None),
        Some(path) => match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(file) => Output(Some(file)),
            Err(error) => {
                let line = format!("remora: cannot write the log {path}: {error}\n");
                Descriptor(libc::STDERR_FILENO).write_all(line.as_bytes()).ok();
                Output(None)
            }
        },
    };
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(output);
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    // A Rust program may have this library linked in and have set a subscriber already.
    tracing::subscriber::set_global_default(subscriber).ok();
}

/// What a value of the variable asks for.
fn parse(value: &str) -> (Targets, Option<String>) {
    let filter = |text: &str| text.parse().ok().filter(|_| looks_like_filter(text));
    let level = |level: LevelFilter| Targets::new().with_default(level);
    if value.is_empty() {
        return (level(LevelFilter::ERROR), None);
    }
    if let Some(filter) = filter(value) {
        return (filter, None);
    }
    match value.split_once(':').map(|(text, path)| (filter(text), path)) {
        Some((Some(filter), path)) => (filter, Some(path.to_owned())),
        _ => (level(LevelFilter::DEBUG), Some(value.to_owned())),
    }
}

/// Is every part of `text` a level, or `target=level`?
fn looks_like_filter(text: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    text.split(',').all(|part| {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        LEVELS.iter().any(|known| level.eq_ignore_ascii_case(known))
    })
}

/// Where lines go: a file, or standard error.
#[derive(Debug)]
struct Output(Option<File>);

/// Writes without a lock, because a lock might be taken at the moment of a fork.
struct Descriptor(RawFd);

impl<'a> MakeWriter<'a> for Output {
    type Writer = Descriptor;
    fn make_writer(&'a self) -> Descriptor {
        Descriptor(self.0.as_ref().map_or(libc::STDERR_FILENO, AsRawFd::as_raw_fd))
    }
}

impl Write for Descriptor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the bytes live through the call; a bad descriptor makes the call fail and harms
        // nothing.
        let written = unsafe { libc::write(self.0, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_variable() {
        let parsed = |value: &str| {
            let (filter, path) = parse(value);
            (filter.to_string(), path)
        };
        assert_eq!(parsed(""), ("error".into(), None));
        assert_eq!(parsed("debug"), ("debug".into(), None));
        assert_eq!(parsed("remora_nic=trace"), ("remora_nic=trace".into(), None));
        assert_eq!(parsed("/var/x.log"), ("debug".into(), Some("/var/x.log".into())));
        assert_eq!(parsed("info:x-%p"), ("info".into(), Some("x-%p".into())));
        assert_eq!(parsed("a:b"), ("debug".into(), Some("a:b".into())));
    }
}
