//! The demo's file: one that the user names, or real files of this machine, joined.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use remora_command::folder::Folder;
use remora_command::output;

/// Folders that hold real data on any machine.
const SOURCES: [&str; 3] = ["/usr/lib", "/usr/share", "/usr/bin"];
/// The most that the demo moves, because it holds several copies in memory.
pub(super) const BYTES_MAX: u64 = 1 << 30;

/// The file to serve.
#[derive(Debug)]
pub(super) struct DataFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) crc32: u32,
    /// Its origin, for people.
    pub(super) story: String,
    /// The folder, if the demo has made the file; removed with this value.
    _folder: Option<Folder>,
}

impl DataFile {
    /// A file that the user names.
    pub(super) fn given(path: &Path) -> Result<DataFile> {
        let unreadable = || format!("cannot read {}", path.display());
        let about = fs::metadata(path).with_context(unreadable)?;
        ensure!(about.is_file(), "cannot serve {}: it is not a regular file", path.display());
        ensure!(about.len() > 0, "cannot serve {}: it is empty", path.display());
        ensure!(
            about.len() <= BYTES_MAX,
            "{} has {}; the demo moves at most {}: use `remora node` and `remora mem` for more",
            path.display(),
            output::bytes(about.len()),
            output::bytes(BYTES_MAX)
        );
        let crc32 =
            checksum(File::open(path).with_context(unreadable)?).with_context(unreadable)?;
        let story = path.display().to_string();
        Ok(DataFile { path: path.into(), bytes: about.len(), crc32, story, _folder: None })
    }

    /// `bytes` bytes of this machine's own files, joined in sorted order.
    pub(super) fn gather(bytes: u64) -> Result<DataFile> {
        let folder = Folder::new("demo-file")?;
        let path = folder.path().join("data");
        let file =
            File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut joined =
            Joined { out: BufWriter::new(file), left: bytes, files: 0, used: Vec::new() };
        let written = joined.fill().and_then(|()| joined.out.flush());
        written.with_context(|| format!("cannot write {} bytes to {}", bytes, path.display()))?;
        let files = output::grouped(joined.files);
        let story = format!("{files} files of {}, joined in sorted order", joined.used.join(", "));
        let crc32 = checksum(File::open(&path)?).context("cannot read what was just written")?;
        if joined.left > 0 {
            bail!("found no readable files in {}; name one with --file", SOURCES.join(", "));
        }
        Ok(DataFile { path, bytes, crc32, story, _folder: Some(folder) })
    }
}

/// Regular files of this machine that are not empty, in sorted order; at most `most`, and at least
/// one.
pub(super) fn files(most: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    SOURCES.iter().for_each(|source| find(Path::new(source), most, &mut found));
    ensure!(!found.is_empty(), "found no files in {}", SOURCES.join(", "));
    Ok(found)
}

fn find(path: &Path, most: usize, found: &mut Vec<PathBuf>) {
    let Ok(about) = fs::symlink_metadata(path) else { return };
    if found.len() >= most {
        return;
    }
    if about.is_file() && about.len() > 0 {
        found.push(path.into());
    } else if about.is_dir() {
        sorted(path).iter().for_each(|path| find(path, most, found));
    }
}

/// The entries of a folder in sorted order; none if it cannot be read.
fn sorted(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The joined file, while files are added to it.
struct Joined {
    out: BufWriter<File>,
    left: u64,
    files: u64,
    /// The folders of [`SOURCES`] that have contributed.
    used: Vec<&'static str>,
}

impl Joined {
    /// Adds files until there are enough bytes; on a small machine, the same files several times.
    fn fill(&mut self) -> io::Result<()> {
        loop {
            let before = self.left;
            for source in SOURCES {
                let so_far = self.left;
                self.add(Path::new(source))?;
                if self.left < so_far && !self.used.contains(&source) {
                    self.used.push(source);
                }
            }
            if self.left == 0 || self.left == before {
                return Ok(());
            }
        }
    }

    /// Adds a file, or a folder's files in sorted order. Files that cannot be read are skipped.
    fn add(&mut self, path: &Path) -> io::Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        let Ok(about) = fs::symlink_metadata(path) else { return Ok(()) };
        if about.is_file() && about.len() > 0 {
            let Ok(file) = File::open(path) else { return Ok(()) };
            self.left -= io::copy(&mut file.take(self.left), &mut self.out)?;
            self.files += 1;
        } else if about.is_dir() {
            for path in sorted(path) {
                self.add(&path)?;
            }
        }
        Ok(())
    }
}

fn checksum(file: File) -> io::Result<u32> {
    let mut crc = crc32fast::Hasher::new();
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(crc.finalize()),
            len => crc.update(&piece[..len]),
        }
    }
}
