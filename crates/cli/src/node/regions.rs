//! What a node serves.

use std::fs::File;
use std::path::{Path, PathBuf};

use remora::nic::Access;
use remora::nic::queue::Remote;
use remora::{Device, MemoryRegion, ProtectionDomain};
use serde::{Deserialize, Serialize};

use super::protocol::Reply;
use super::spec::{RegionSpec, Source};
use super::start::StartError;

/// What a node says of one of its regions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Clients may WRITE.
    pub writable: bool,
    /// The bytes are a file's, and not memory.
    pub file: bool,
    /// Why it is not served any more, if so.
    pub withdrawn: Option<String>,
}

/// A region in a protection domain of its own.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) info: RegionInfo,
    pub(crate) pd: ProtectionDomain,
    /// None once it is withdrawn: the key is stale then.
    region: Option<MemoryRegion>,
    /// A file that might shrink.
    file: Option<(File, PathBuf)>,
}

impl Served {
    /// Makes what `spec` says.
    pub(crate) fn open(device: &Device, spec: &RegionSpec) -> Result<Served, StartError> {
        match &spec.source {
            Source::Memory(bytes) => Served::memory(device, &spec.name, *bytes, spec.writable),
            Source::File(path) => Served::file(device, &spec.name, path, spec.writable),
        }
    }

    /// Zeroed memory.
    pub(crate) fn memory(
        device: &Device,
        name: &str,
        bytes: u64,
        writable: bool,
    ) -> Result<Served, StartError> {
        let pd = device.alloc_pd()?;
        let atomics = if writable { Access::REMOTE_ATOMIC } else { Access::empty() };
        // A length that is no `usize` is refused with the same words as one that is too large.
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

    /// A handle to the region; None once it is withdrawn.
    pub(crate) fn region(&self) -> Option<&MemoryRegion> {
        self.region.as_ref()
    }

    /// What a client needs to use it; None once it is withdrawn.
    pub(crate) fn offer(&self) -> Option<Reply> {
        let Remote { addr, rkey } = self.region.as_ref()?.remote(0);
        let RegionInfo { bytes: len, writable, file, .. } = self.info;
        Some(Reply { addr, len, rkey, writable, file })
    }

    /// What a client of it may do, at most.
    pub(crate) fn access(&self) -> Access {
        let atomics = self.info.writable && !self.info.file;
        let atomics = if atomics { Access::REMOTE_ATOMIC } else { Access::empty() };
        (access(self.info.writable) | atomics) - Access::LOCAL_WRITE
    }

    /// Withdraws the region if its file has shrunk: some of what was promised is gone. From then
    /// on its key opens nothing. Returns what to tell the operator, if it has just happened.
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
