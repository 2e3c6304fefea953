//! The environment in which a program finds Remora's library. What about a program keeps the
//! library out (static linking, an RPATH, a copy of its own) is in `program`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use remora::environment::{ADDR_VARIABLE, LOG_VARIABLE};
use remora::impair::{IMPAIR_VARIABLE, Impairments};
use remora::interface::Interface;
use remora::message::{ANEW_VARIABLE, KEEP_VARIABLE, Kept};
use remora_command::log::is_level;

use super::libraries::{Libraries, put_first};
use crate::failure::wrong_line;

/// The folders searched first for libraries.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The libraries loaded before all others.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";

/// The variables to set, in this order.
pub(crate) type Variables = Vec<(&'static str, OsString)>;

/// The options that a person has given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes<'a> {
    /// Addresses or interfaces, as the library takes them.
    pub(crate) addr: Option<&'a str>,
    /// The file to which the library writes its log.
    pub(crate) log: Option<&'a Path>,
    /// What is done to packets, or `@FILE`.
    pub(crate) impair: Option<&'a str>,
    /// Do not set `LD_PRELOAD`.
    pub(crate) no_preload: bool,
    /// Have the program's session kept.
    pub(crate) keep: Option<&'a Kept>,
    /// End the session of that name that a program has left.
    pub(crate) anew: bool,
}

impl Wishes<'_> {
    /// The variables that these options lead to.
    pub(crate) fn variables(&self, libraries: &Libraries) -> Result<Variables> {
        let links = libraries.links()?;
        let list = |first: &OsStr, name, separators| {
            let now = env::var_os(name);
            OsString::from_vec(put_first(first, now.as_deref(), separators))
        };
        let mut variables = vec![(LIBRARY_PATH, list(links.as_os_str(), LIBRARY_PATH, b":;"))];
        if !self.no_preload {
            // The library under its own name is the same object as under the names of the links.
            let mut first = libraries.verbs.clone().into_os_string();
            if let Some(sysfs) = &libraries.sysfs {
                first = OsString::from_vec(put_first(&first, Some(sysfs.as_os_str()), b":"));
            }
            let now = env::var_os(PRELOAD).unwrap_or_default();
            let ours = first.as_encoded_bytes().split(|byte| *byte == b':');
            let ours: Vec<&[u8]> = ours.collect();
            // Within another `remora run`, the lists hold the library already.
            let theirs = now.as_encoded_bytes().split(|byte| matches!(byte, b':' | b' '));
            let theirs = theirs.filter(|part| !ours.contains(part)).collect::<Vec<_>>().join(&b':');
            let all = put_first(&first, Some(&OsString::from_vec(theirs)), b":");
            variables.push((PRELOAD, OsString::from_vec(all)));
        }
        if let Some(addr) = self.addr {
            are_addresses(addr)?;
            variables.push((ADDR_VARIABLE, addr.into()));
        }
        if let Some(impair) = self.impair {
            variables.push((IMPAIR_VARIABLE, impair_value(impair)?));
        }
        if let Some(log) = self.log {
            variables.push((LOG_VARIABLE, log_value(log)?));
        }
        if let Some(keep) = self.keep {
            variables.push((KEEP_VARIABLE, keep.to_string().into()));
        }
        if self.anew {
            variables.push((ANEW_VARIABLE, "1".into()));
        }
        Ok(variables)
    }
}

/// Checks that each part of `REMORA_ADDR` is something to which a card can be bound.
pub(crate) fn are_addresses(list: &str) -> Result<()> {
    for part in list.split(',').map(str::trim) {
        if !matches!(part, "" | "auto") {
            Interface::find(part)?;
        }
    }
    Ok(())
}

/// `REMORA_IMPAIR` for impairments that can be understood, or for a file of them.
fn impair_value(wanted: &str) -> Result<OsString> {
    let Some(file) = wanted.strip_prefix('@') else {
        wanted.parse::<Impairments>().map_err(wrong_line)?;
        return Ok(wanted.into());
    };
    // Absolute, because the program may change its working directory.
    let path = Path::new(file).canonicalize();
    let path = path.with_context(|| format!("cannot read the impairments in {file}"))?;
    let text = std::fs::read_to_string(&path);
    text.with_context(|| format!("cannot read {file}"))?.parse::<Impairments>()?;
    let mut value = OsString::from("@");
    value.push(path);
    Ok(value)
}

/// `REMORA_LOG` for this file: at the level that it names already, else at `debug`.
fn log_value(file: &Path) -> Result<OsString> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Absolute, because the program may change its working directory.
    let folder = folder
        .canonicalize()
        .with_context(|| format!("no folder for the log {}", file.display()))?;
    let Some(name) = file.file_name().filter(|_| !file.is_dir()) else {
        bail!("the log `{}` is a folder; name a file", file.display());
    };
    let level = env::var(LOG_VARIABLE).ok().filter(|value| is_level(value));
    let mut value = OsString::from(level.as_deref().unwrap_or("debug"));
    value.push(":");
    value.push(folder.join(name));
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_an_address_list_is_checked() {
        assert!(are_addresses("").is_ok() && are_addresses("auto, lo,127.0.0.9").is_ok());
        let error = are_addresses("lo,nosuch0").unwrap_err().to_string();
        assert!(error.contains("`nosuch0`"), "{error}");
    }
}
