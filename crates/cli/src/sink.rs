//! Where a command writes what it has been asked for.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result};

/// The destination: a new file that gets its name when it is complete, or a stream.
pub(crate) enum Sink {
    File {
        file: File,
        part: PathBuf,
        path: PathBuf,
        complete: bool,
    },
    /// It is shown if it is a terminal.
    Stream {
        stream: Box<dyn Write>,
        is_shown: bool,
    },
}

impl Sink {
    /// `-` is standard output.
    pub(crate) fn create(path: &Path) -> Result<Sink> {
        if path == Path::new("-") {
            return Ok(Sink::stream(io::stdout()));
        }
        let unwritable = |path: &Path| format!("cannot write {}", path.display());
        match fs::metadata(path) {
            Ok(about) if about.is_dir() => {
                anyhow::bail!("cannot write {}: it is a directory", path.display())
            }
            Ok(about) if !about.is_file() => {
                let file = File::options().write(true).open(path);
                return Ok(Sink::stream(file.with_context(|| unwritable(path))?));
            }
            _ => {}
        }
        let name = path.file_name().with_context(|| unwritable(path))?.to_string_lossy();
        let part = path.with_file_name(format!(".{name}.{}.part", process::id()));
        let file = File::create_new(&part).with_context(|| unwritable(path))?;
        Ok(Sink::File { file, part, path: path.into(), complete: false })
    }

    fn stream(stream: impl Write + IsTerminal + 'static) -> Sink {
        let is_shown = stream.is_terminal();
        Sink::Stream { stream: Box::new(stream), is_shown }
    }

    /// Whether a person sees what is written: nothing else is to stand between.
    pub(crate) fn is_shown(&self) -> bool {
        matches!(self, Sink::Stream { is_shown: true, .. })
    }

    /// Gives the file its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        match &mut self {
            Sink::File { part, path, complete, .. } => {
                fs::rename(part, &path).with_context(|| {
                    format!("cannot rename the complete file to {}", path.display())
                })?;
                *complete = true;
                Ok(())
            }
            Sink::Stream { stream, .. } => stream.flush().context("cannot write to the output"),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::File { file, path, .. } => file.write(bytes).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
            }),
            Sink::Stream { stream, .. } => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::File { file, .. } => file.flush(),
            Sink::Stream { stream, .. } => stream.flush(),
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Sink::File { part, complete: false, .. } = self {
            // If the half-written file cannot be removed, nothing more can be done.
            fs::remove_file(part).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_seen_and_other_streams_are_not() {
        let is_shown = |path| Sink::create(Path::new(path)).unwrap().is_shown();
        assert!(is_shown("/dev/ptmx"));
        assert!(!is_shown("/dev/null"));
    }
}
