//! Single keys.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result};
use clap::Args;
use remora_command::seconds::seconds;
use remora_store::client::{self, StoreError};
use remora_store::way::call::{Condition, EXPIRY_KEPT, EXPIRY_NEVER, Placement};
use serde_json::json;

use super::StoreArgs;
use super::condition::Holds;
use crate::output;

/// `remora store get`.
#[derive(Debug, Args)]
pub(super) struct Get {
    #[command(flatten)]
    store: StoreArgs,
    /// The key
    key: String,
    #[command(flatten)]
    holds: Holds,
    /// Where to put the value [default: standard output, with a line end if it is a terminal]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print a line of JSON: version, flags, expiry and length
    #[arg(long)]
    json: bool,
}

impl Get {
    pub(super) fn run(self) -> Result<ExitCode> {
        let (mut value, plan) = (Vec::new(), self.holds.plan()?);
        let (key, condition) = (self.key.as_bytes(), self.holds.condition(&plan));
        let found = self.store.with(|client| match client.get_if(key, condition, &mut value) {
            // The store's card is a daemon's. What READs find, they find all the same.
            Err(StoreError::NoKernels) if condition == Condition::None => {
                Ok(client.get_one_sided(key, &mut value)?)
            }
            found => Ok(found?),
        })?;
        let Some(about) = found else {
            if self.json {
                output::json_line(&json!({ "found": false }))?;
            } else if condition == Condition::None {
                eprintln!("remora: there is no key `{}`", self.key);
            } else {
                eprintln!("remora: no key `{}` for which the condition holds", self.key);
            }
            return Ok(ExitCode::FAILURE);
        };
        if let Some(path) = &self.out {
            fs::write(path, &value).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.json {
            output::json_line(&json!({
                "found": true,
                "version": about.version,
                "flags": about.flags,
                "expires_ms": about.expires_ms,
                "bytes": value.len(),
            }))?;
        } else if self.out.is_none() {
            let mut out = output::out();
            out.write_all(&value)?;
            if io::stdout().is_terminal() {
                out.write_all(b"\n")?;
            }
            out.flush()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `remora store put`.
#[derive(Debug, Args)]
pub(super) struct Put {
    #[command(flatten)]
    store: StoreArgs,
    /// The key
    key: String,
    /// The value [default: what --in names]
    #[arg(required_unless_present = "input")]
    value: Option<String>,
    /// A file with the value; - is standard input
    #[arg(long = "in", value_name = "FILE", conflicts_with = "value")]
    input: Option<PathBuf>,
    /// Only if the key is not there yet
    #[arg(long, conflicts_with_all = ["if_present", "if_version", "if_value", "if_where"])]
    if_absent: bool,
    /// Only if the key is there
    #[arg(long, conflicts_with_all = ["if_version", "if_value", "if_where"])]
    if_present: bool,
    #[command(flatten)]
    holds: Holds,
    /// Put the value behind the one that is there
    #[arg(long)]
    append: bool,
    /// Seconds after which the key expires [default: as the tablespace has it; with --append, as
    /// it was]
    #[arg(long, value_name = "SECONDS", value_parser = in_seconds)]
    expire: Option<u64>,
    /// The client's own flags
    #[arg(long, default_value_t = 0)]
    flags: u32,
}

impl Put {
    pub(super) fn run(self) -> Result<ExitCode> {
        let (value, plan) = (self.bytes()?, self.holds.plan()?);
        let condition = match (self.if_absent, self.if_present) {
            (true, _) => Condition::Absent,
            (_, true) => Condition::Present,
            _ => self.holds.condition(&plan),
        };
        let (placement, without) = match self.append {
            true => (Placement::Append, EXPIRY_KEPT),
            // As the tablespace has it.
            false => (Placement::Set, 0),
        };
        let expires_ms = self.expire.unwrap_or(without);
        let how = client::Put { condition, placement, flags: self.flags, expires_ms };
        let key = self.key.as_bytes();
        let set = self.store.with(|client| Ok(client.put_with(key, &value, &how)?))?;
        if set.is_none() {
            eprintln!("remora: not set, since the condition does not hold");
        }
        Ok(if set.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        match (&self.value, &self.input) {
            (Some(value), _) => Ok(value.clone().into_bytes()),
            (None, Some(path)) if path.as_os_str() == "-" => {
                let mut bytes = Vec::new();
                io::stdin().lock().read_to_end(&mut bytes).context("cannot read the value")?;
                Ok(bytes)
            }
            (None, path) => {
                let path = path.as_deref().context("no value")?;
                fs::read(path).with_context(|| format!("cannot read {}", path.display()))
            }
        }
    }
}

/// So many seconds from now, in milliseconds of Unix time.
fn in_seconds(text: &str) -> Result<u64, String> {
    let at = SystemTime::now().checked_add(seconds(text)?);
    let at = at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let ms = at.and_then(|at| u64::try_from(at.as_millis()).ok());
    let ms = ms.filter(|ms| *ms < EXPIRY_NEVER);
    ms.ok_or_else(|| format!("`{text}` is no number of seconds in which a key can expire"))
}

/// `remora store delete`.
#[derive(Debug, Args)]
pub(super) struct Delete {
    #[command(flatten)]
    store: StoreArgs,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
    #[command(flatten)]
    holds: Holds,
}

impl Delete {
    pub(super) fn run(self) -> Result<ExitCode> {
        let plan = self.holds.plan()?;
        let condition = self.holds.condition(&plan);
        let gone = self.store.with(|client| {
            let mut gone = 0;
            for key in &self.keys {
                gone += usize::from(client.delete_if(key.as_bytes(), condition)?);
            }
            Ok(gone)
        })?;
        println!("{gone} of {} deleted", output::counted(self.keys.len() as u64, "key"));
        Ok(if gone > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
