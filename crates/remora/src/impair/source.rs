//! Where the wish for a bad network comes from: the options of the device, the environment, or a
//! file that may change while the card runs.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use remora_nic::Time;

use super::parse::TEXT_MAX;
use super::{BadImpairment, IMPAIR_VARIABLE, Impairments};
use crate::environment;

/// Between two looks at the file.
const PERIOD: Duration = Duration::from_millis(100);

/// What a card is to do to packets, and the file that may change it.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    pub(crate) impairments: Impairments,
    pub(crate) watch: Option<Watch>,
}

/// A file that says what is to happen to packets.
#[derive(Debug)]
pub(crate) struct Watch {
    path: PathBuf,
    seen: Option<(SystemTime, u64)>,
    look_at: Time,
}

impl Wish {
    /// As [`IMPAIR_VARIABLE`] says.
    ///
    /// # Errors
    /// It cannot be understood, or its file cannot be read.
    pub(crate) fn from_environment() -> Result<Wish, BadImpairment> {
        Wish::parse(&environment::text(IMPAIR_VARIABLE))
    }

    fn parse(text: &str) -> Result<Wish, BadImpairment> {
        let Some(path) = text.strip_prefix('@') else {
            return Ok(Wish { impairments: text.parse()?, watch: None });
        };
        let path = PathBuf::from(path);
        let seen = mark(&path);
        let impairments = read(&path)?;
        Ok(Wish { impairments, watch: Some(Watch { path, seen, look_at: Time::ZERO }) })
    }

    /// Does the card have to be ready to do anything to packets?
    pub(crate) fn is_nothing(&self) -> bool {
        self.impairments.is_off() && self.watch.is_none()
    }
}

impl Watch {
    /// When the file is to be looked at again.
    pub(crate) fn look_at(&self) -> Time {
        self.look_at
    }

    /// What the file says now, if it is time to look and it has changed. A file that cannot be read
    /// or understood changes nothing, and the log says why.
    pub(crate) fn look(&mut self, now: Time) -> Option<Impairments> {
        if now < self.look_at {
            return None;
        }
        self.look_at = now + PERIOD;
        let seen = mark(&self.path);
        if seen == self.seen {
            return None;
        }
        self.seen = seen;
        read(&self.path).inspect_err(|error| tracing::error!(%error, "nothing has changed")).ok()
    }
}

/// What changes with the content of a file; `None` if there is no such file.
fn mark(path: &Path) -> Option<(SystemTime, u64)> {
    let data = fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len()))
}

fn read(path: &Path) -> Result<Impairments, BadImpairment> {
    read_text(path)
        .map_err(|why| BadImpairment::File {
            path: path.display().to_string(),
            why: why.to_string(),
        })?
        .parse()
}

fn read_text(path: &Path) -> io::Result<String> {
    // The name of a pipe would hold up the card until somebody writes.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    File::open(path)?.take(TEXT_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    #[test]
    fn a_file_is_read_again_when_it_has_changed() {
        let path = env::temp_dir().join(format!("remora-impair-{}", std::process::id()));
        fs::write(&path, "loss=1%\n").unwrap();
        let mut wish = Wish::parse(&format!("@{}", path.display())).unwrap();
        assert_eq!(wish.impairments.rules.len(), 1);
        let watch = wish.watch.as_mut().unwrap();
        assert_eq!(watch.look(Time(1)), None, "it has not changed");
        fs::write(&path, "loss=1%; loss=2%").unwrap();
        assert_eq!(watch.look(Time(2)), None, "it is not time yet");
        let period = PERIOD.as_nanos() as u64;
        assert_eq!(watch.look(Time(1 + period)).unwrap().rules.len(), 2);
        fs::write(&path, "what?").unwrap();
        assert_eq!(watch.look(Time(1 + 2 * period)), None, "what is wrong changes nothing");
        fs::write(&path, "").unwrap();
        assert!(watch.look(Time(1 + 3 * period)).unwrap().is_off());
        fs::remove_file(&path).unwrap();
        assert_eq!(watch.look(Time(1 + 4 * period)), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_explained() {
        for path in ["/no/such/file", "/dev"] {
            let error = Wish::parse(&format!("@{path}")).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains("cannot read"), "{error}");
        }
        assert!(Wish::parse("").unwrap().is_nothing());
    }
}
