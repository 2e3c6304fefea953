//! What a caller chooses of a log: how safe a change is when it counts as kept, and its limits.

use std::fmt;

/// When a change counts as kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// When it is on the disk: the client that made it waits for that.
    Always,
    /// At once; it is on the disk a second later. A crash of the machine loses that second.
    #[default]
    EverySecond,
    /// At once; it is on the disk when the operating system thinks fit, and after
    /// [`Options::unsynced_bytes`] at the latest.
    No,
}

impl std::str::FromStr for Fsync {
    type Err = String;

    fn from_str(word: &str) -> Result<Fsync, String> {
        match word {
            "always" => Ok(Fsync::Always),
            "everysec" => Ok(Fsync::EverySecond),
            "no" => Ok(Fsync::No),
            _ => Err(format!("{word:?} is none of always, everysec and no")),
        }
    }
}

impl fmt::Display for Fsync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fsync::Always => "always",
            Fsync::EverySecond => "everysec",
            Fsync::No => "no",
        })
    }
}

/// How the log is kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When a change counts as kept.
    pub fsync: Fsync,
    /// A segment of this length is followed by another, in bytes.
    pub segment_bytes: u64,
    /// The log keeps what is not synced in memory, to write it again after an error; when that is
    /// this many bytes, it syncs whatever [`Options::fsync`] says.
    pub unsynced_bytes: usize,
    /// Changes are refused while so many bytes wait to be written: the disk is slower than they.
    pub behind_bytes: usize,
    /// How long after an error the log tries again, in milliseconds.
    pub retry_ms: u64,
    /// The epoch of what is appended, unless the log that is there has a later one.
    pub epoch: u32,
    /// A number that clients do not know, another one at each start.
    pub salt: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fsync: Fsync::default(),
            segment_bytes: 64 << 20,
            unsynced_bytes: 32 << 20,
            behind_bytes: 64 << 20,
            retry_ms: 1000,
            epoch: 0,
            salt: 0,
        }
    }
}
