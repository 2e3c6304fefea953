//! The regions that a node serves, and what a client may do to each ([`Served::access`]).

use std::fs::File;
use std::path::{Path, PathBuf};

use remora::nic::Access;
use remora::nic::queue::RemoteAddress;
use remora::{Device, MemoryRegion, ProtectionDomain};
use serde::{Deserialize, Serialize};

use super::protocol::Reply;
use super::spec::{RegionSpec, Source};
use super::start::StartError;

/// A region, as a node lists it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Clients may WRITE.
    pub writable: bool,
    /// The bytes are those of a file, not of memory.
    pub file: bool,
    /// The reason, if it is no longer served.
    pub withdrawn: Option<String>,
}

/// A region in a protection domain of its own.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) info: RegionInfo,
    pub(crate) pd: ProtectionDomain,
    /// `None` once it is withdrawn, which makes its key stale.
    region: Option<MemoryRegion>,
    /// Its file, which is watched in case it shrinks.
    file: Option<(File, PathBuf)>,
}

impl Served {
    /// Opens the region that `spec` describes.
    pub(crate) fn open(device: &Device, spec: &RegionSpec) -> Result<Served, StartError> {
        match &spec.source {
            Source::Memory(bytes) => Served::memory(device, &spec.name, *bytes, spec.writable),
            Source::File(path) => Served::file(device, &spec.name, path, spec.writable),
        }
    }

    /// Makes a region of zeroed memory.
    pub(crate) fn memory(
        device: &Device,
        name: &str,
        bytes: u64,
        writable: bool,
    ) -> Result<Served, StartError> {
        let pd = device.alloc_pd()?;
        let atomics = if writable { Access::REMOTE_ATOMIC } else { Access::empty() };
        // A length that does not fit a `usize` gets the same error as one that is too large.
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let region = pd
            .alloc(len, access(writable) | atomics)
            .map_err(|source| StartError::Register { name: name.into(), source })?;
        Ok(Served::new(name, pd, region, writable, None))
    }

    fn file(
        device: &Device,
        name: &str,
        path: &Path,
        writable: bool,
    ) -> Result<Served, StartError> {
        let unreadable = |source| StartError::Open { name: name.into(), path: path.into(), source };
        let file = File::options().read(true).write(writable).open(path).map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(StartError::NoFile { name: name.into(), path: path.into() });
        }
        let watched = file.try_clone().map_err(unreadable)?;
        let pd = device.alloc_pd()?;
        let region = pd.register_file(file, access(writable)).map_err(|source| match source {
            remora::RegisterError::EmptyFile => {
                StartError::EmptyFile { name: name.into(), path: path.into() }
            }
            source => StartError::Register { name: name.into(), source },
        })?;
        Ok(Served::new(name, pd, region, writable, Some((watched, path.into()))))
    }

    fn new(
        name: &str,
        pd: ProtectionDomain,
        region: MemoryRegion,
        writable: bool,
        file: Option<(File, PathBuf)>,
    ) -> Served {
        let info = RegionInfo {
            name: name.into(),
            bytes: region.len(),
            writable,
            file: file.is_some(),
            withdrawn: None,
        };
        Served { info, pd, region: Some(region), file }
    }

    /// A handle to the region; `None` once it is withdrawn.
    pub(crate) fn region(&self) -> Option<&MemoryRegion> {
        self.region.as_ref()
    }

    /// The reply to a client; `None` once it is withdrawn.
    pub(crate) fn offer(&self) -> Option<Reply> {
        let RemoteAddress { addr, rkey } = self.region.as_ref()?.remote(0);
        let RegionInfo { bytes: len, writable, file, .. } = self.info;
        Some(Reply { addr, len, rkey, writable, file })
    }

    /// The most that a client may do to it.
    pub(crate) fn access(&self) -> Access {
        let atomics = self.info.writable && !self.info.file;
        let atomics = if atomics { Access::REMOTE_ATOMIC } else { Access::empty() };
        (access(self.info.writable) | atomics) - Access::LOCAL_WRITE
    }

    /// Withdraws the region if its file has shrunk, because promised bytes are gone; from then on
    /// its key opens nothing. Returns a message to the operator when that has just happened.
    pub(crate) fn check_file(&mut self) -> Option<String> {
        let (file, path) = self.file.as_ref().filter(|_| self.region.is_some())?;
        let fault = match file.metadata() {
            Ok(now) if now.len() >= self.info.bytes => return None,
            Ok(now) => format!("its file shrank from {} to {} bytes", self.info.bytes, now.len()),
            Err(error) => format!("its file can no longer be examined ({:?})", error.kind()),
        };
        let told = format!(
            "region `{}` is withdrawn: {fault} while it was served: {}; restart the node to serve \
             what is there now",
            self.info.name,
            path.display()
        );
        self.region = None;
        self.info.withdrawn = Some(fault);
        Some(told)
    }
}

fn access(writable: bool) -> Access {
    let writes = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    Access::REMOTE_READ | if writable { writes } else { Access::empty() }
}
