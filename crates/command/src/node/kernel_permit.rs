//! The permit to load kernels: a secret that only this user of this machine can read.
//!
//! A node leaves a fresh token in a file that only its user can open. A command that shows that
//! token therefore runs as the same user on the same machine. The address of a client would prove
//! nothing, because all users can connect to loopback addresses.
//!
//! `kernels` asks clients for it, and for the tokens of `--kernel-token`, which `serve` gathers.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use remora::connection::token::{Token, TokenError};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use thiserror::Error;

use super::address::NodeAddress;

/// A token in a file; dropping it removes the file.
#[derive(Debug)]
pub struct Permit {
    path: PathBuf,
    token: Token,
}

/// Why there is no permit.
#[derive(Debug, Error)]
pub enum PermitError {
    /// The folder cannot be made or examined, or the file cannot be made.
    #[error("{path}: {source}")]
    File {
        /// The folder or the file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Other users could read or change it.
    #[error("{0} belongs to another user, or is open to others")]
    Open(PathBuf),
    /// The file does not hold a token.
    #[error("{0}: {1}")]
    Token(PathBuf, TokenError),
}

impl Permit {
    /// Leaves `token` in a file, for commands that load kernels into the node at `address`.
    ///
    /// # Errors
    /// The file cannot be made so that only this user can read it.
    pub fn leave(address: &NodeAddress, token: Token) -> Result<Permit, PermitError> {
        let folder = folder();
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(PermitError::File { path: folder, source: error });
            }
            _ => own(&folder, fs::symlink_metadata(&folder))?,
        }
        let path = folder.join(name(address));
        let failed = |source| PermitError::File { path: path.clone(), source };
        // Left by a node that had this address and was killed.
        fs::remove_file(&path).or_else(none).map_err(failed)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        writeln!(file, "{token}").map_err(failed)?;
        Ok(Permit { path, token })
    }

    /// The token.
    pub fn token(&self) -> Token {
        self.token
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // A file that stays permits nothing: the next node has another token.
        fs::remove_file(&self.path).ok();
    }
}

/// The token that a node of this user at `address` has left; `None` if there is none.
///
/// # Errors
/// The file is not as a node leaves it.
pub fn find(address: &NodeAddress) -> Result<Option<Token>, PermitError> {
    let path = folder().join(name(address));
    let failed = |source| PermitError::File { path: path.clone(), source };
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    own(&path, file.metadata())?;
    let text = read(file).map_err(failed)?;
    text.parse().map(Some).map_err(|error| PermitError::Token(path, error))
}

fn read(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(64).read_to_string(&mut text)?;
    Ok(text)
}

/// Does it belong to this user alone?
fn own(path: &Path, about: io::Result<fs::Metadata>) -> Result<(), PermitError> {
    let about = about.map_err(|source| PermitError::File { path: path.into(), source })?;
    let ours = about.uid() == geteuid().as_raw() && about.mode() & 0o077 == 0;
    if ours && !about.is_symlink() { Ok(()) } else { Err(PermitError::Open(path.into())) }
}

fn none(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The user's own folder for files of running programs, or one beside the temporary files.
fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute()) {
        Some(own) => Path::new(&own).join("remora"),
        None => std::env::temp_dir().join(format!("remora-{}", geteuid().as_raw())),
    }
}

fn name(address: &NodeAddress) -> String {
    format!("node-{}-{}", address.ip, address.port)
}
