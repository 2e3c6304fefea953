//! Where a command writes what it has been asked for.

use std::fs::{self, File, Metadata};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result, bail};

use crate::output;

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
    /// `-` is standard output, as is another name for it. A link stays: what it names is written.
    pub(crate) fn create(path: &Path) -> Result<Sink> {
        let unwritable = || format!("cannot write {}", path.display());
        let there = fs::metadata(path).ok();
        if path == Path::new("-") || there.as_ref().is_some_and(is_standard_output) {
            let is_shown = io::stdout().is_terminal();
            return Ok(Sink::Stream { stream: Box::new(output::out()), is_shown });
        }
        let is_link = fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink());
        let named = if is_link { fs::canonicalize(path).ok() } else { Some(path.to_owned()) };
        let (path, mode) = match (named, there) {
            (_, Some(about)) if about.is_dir() => bail!("{}: it is a directory", unwritable()),
            (Some(path), Some(about)) if about.is_file() => (path, Some(about.permissions())),
            (Some(path), None) => (path, None),
            // Neither has a name that another file could take: no file, and what has lost its name.
            _ => {
                let file = File::options().write(true).create(true).truncate(false).open(path);
                let file = file.with_context(unwritable)?;
                let is_shown = file.is_terminal();
                return Ok(Sink::Stream { stream: Box::new(file), is_shown });
            }
        };
        let name = path.file_name().with_context(unwritable)?.to_string_lossy();
        let part = path.with_file_name(format!(".{name}.{}.part", process::id()));
        let mut new = File::options();
        new.write(true).create_new(true).mode(mode.as_ref().map_or(0o666, PermissionsExt::mode));
        let file = new.open(&part).with_context(unwritable)?;
        let sink = Sink::File { file, part, path, complete: false };
        if let (Sink::File { file, .. }, Some(mode)) = (&sink, mode) {
            // What the process's mask has taken away.
            file.set_permissions(mode).with_context(unwritable)?;
        }
        Ok(sink)
    }

    /// Whether a person sees what is written: nothing else is to stand between.
    pub(crate) fn is_shown(&self) -> bool {
        matches!(self, Sink::Stream { is_shown: true, .. })
    }

    /// Gives the file its name, once it is on the disk: whenever the machine stops, there is the
    /// file that was there before, or all of the new one.
    pub(crate) fn finish(mut self) -> Result<()> {
        match &mut self {
            Sink::File { file, part, path, complete } => {
                let unwritable = || format!("cannot write {}", path.display());
                file.sync_all().with_context(unwritable)?;
                fs::rename(part, &*path).with_context(|| {
                    format!("cannot rename the complete file to {}", path.display())
                })?;
                *complete = true;
                sync_folder(path).with_context(unwritable)
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

/// Makes a file's name last. In a folder that may be written to and not be read, the system does
/// so in its own time.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match File::open(folder.unwrap_or(Path::new("."))) {
        Ok(folder) => folder.sync_all(),
        Err(_) => Ok(()),
    }
}

/// Is it the file, pipe or terminal that standard output goes to?
fn is_standard_output(about: &Metadata) -> bool {
    let Ok(own) = io::stdout().as_fd().try_clone_to_owned() else { return false };
    let own = File::from(own).metadata();
    own.is_ok_and(|own| (own.dev(), own.ino()) == (about.dev(), about.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::symlink;

    use remora_command::folder::Folder;

    use super::*;

    #[test]
    fn a_terminal_is_seen_and_other_streams_are_not() {
        let is_shown = |path| Sink::create(Path::new(path)).unwrap().is_shown();
        assert!(is_shown("/dev/ptmx"));
        assert!(!is_shown("/dev/null"));
    }

    #[test]
    fn a_link_stays_and_a_file_keeps_its_mode() {
        let folder = Folder::new("sink").unwrap();
        let (file, link, new) =
            (folder.path().join("file"), folder.path().join("link"), folder.path().join("new"));
        let write = |path: &Path, bytes: &[u8]| {
            let mut sink = Sink::create(path).unwrap();
            sink.write_all(bytes).unwrap();
            sink.finish().unwrap();
        };
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        symlink("new", &link).unwrap();
        write(&link, b"made");
        assert_eq!(fs::read(&new).unwrap(), b"made", "what a link names, it names still");
        for wanted in [0o600, 0o666] {
            fs::write(&file, "what was there before").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(wanted)).unwrap();
            fs::remove_file(&link).unwrap();
            symlink(&file, &link).unwrap();
            write(&link, b"short");
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!((fs::read(&file).unwrap(), mode(&file)), (b"short".to_vec(), wanted));
        }
    }
}
