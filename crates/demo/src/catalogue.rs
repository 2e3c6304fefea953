//! Work near the data: a catalogue of this machine's files in the memory of another process. The
//! files are looked up by a kernel on that process's card, by one-sided READs, and by an RPC over
//! TCP.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use remora::kernel::builtin::RemoteTable;
use remora::offload::kernel::builtin::consistency;
use serde::Serialize;

use super::data;
use super::figures::Latency;
use remora_command::output;
use remora_command::ways::client::Setup;
use remora_command::ways::lookup::{Way, expect_found};
use remora_command::ways::{Client, Image, List};

/// The number of files in the catalogue, and the bytes kept of each.
const FILES: usize = 2000;
const BYTES_MAX: u64 = 1024;
/// The number of files in the list, and the bytes kept of each.
const LISTED: usize = 16;
const LISTED_BYTES: usize = 64;
/// The node's memory.
const MEMORY: u64 = 4 << 20;
/// The look-ups that are measured, of each kind and in each way.
const SAMPLES: usize = 1000;
const WAYS: [(Way, &str); 3] = [
    (Way::Kernel, "kernel on the node's card"),
    (Way::Reads, "one-sided READs"),
    (Way::Rpc, "RPC over TCP, by its CPU"),
];

/// A file's key, and the bytes that the catalogue has of it.
type Entry = (u64, Vec<u8>);

/// The measurements of one way.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) way: &'static str,
    /// Looking up a file's bytes in a hash table.
    pub(super) table: Latency,
    /// Looking up a file's bytes in a list.
    pub(super) list: Latency,
}

/// A catalogue in the memory of another process.
#[derive(Debug)]
pub(super) struct Catalogue {
    client: Client,
    entries: Vec<Entry>,
    table: RemoteTable,
    list: List,
}

/// A file's key: the CRC64 of its path.
fn key(path: &Path) -> u64 {
    consistency::checksum(path.as_os_str().as_bytes())
}

/// The first bytes of files of this machine, with their keys.
fn entries() -> Result<Vec<Entry>> {
    let mut keys = HashSet::new();
    let mut entries = Vec::new();
    for path in data::files(FILES)? {
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
        // Files that cannot be read are skipped, as in the data that the demo serves.
        if read.is_ok() && !bytes.is_empty() && keys.insert(key(&path)) {
            entries.push((key(&path), bytes));
        }
    }
    Ok(entries)
}

impl Catalogue {
    /// Starts a node, and loads the catalogue into it by WRITEs.
    pub(super) fn load() -> Result<Catalogue> {
        let entries = entries()?;
        let (pin, local) = (false, 1 << 20);
        let client = Client::start(Setup {
            memory: MEMORY,
            local,
            stream: 64 << 10,
            loaded: 0,
            store: 0,
            chains: false,
            pin,
        })?;
        let mut image = Image::new(client.ready.memory.addr, MEMORY as usize);
        let all: Vec<(u64, &[u8])> = entries.iter().map(|(key, bytes)| (*key, &**bytes)).collect();
        let long = all.iter().filter(|(_, bytes)| bytes.len() >= LISTED_BYTES);
        let listed: Vec<(u64, &[u8])> =
            long.map(|(key, bytes)| (*key, &bytes[..LISTED_BYTES])).take(LISTED).collect();
        let (table, list) = (image.table(&all)?, image.list(&listed)?);
        client.load(&image)?;
        Ok(Catalogue { client, entries, table, list })
    }

    /// The process id of the node.
    pub(super) fn peer_id(&self) -> u32 {
        self.client.peer_id()
    }

    pub(super) fn files(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn listed(&self) -> usize {
        self.list.keys.len()
    }

    /// Fetches every file in every way, compares its bytes, and measures.
    pub(super) fn look_up(&self) -> Result<Vec<Measured>> {
        let one = |(way, name)| {
            let work = || self.in_one_way(way, name);
            if way == Way::Rpc { self.client.with_rpcs(work) } else { work() }
        };
        WAYS.into_iter().map(one).collect()
    }

    fn in_one_way(&self, way: Way, name: &'static str) -> Result<Measured> {
        let mut out = Vec::new();
        let mut fetch = |key: u64, from_list: bool| -> Result<Vec<u8>> {
            out.clear();
            expect_found(match from_list {
                true => self.client.list_value(way, &self.list, key, &mut out)?,
                false => self.client.table_value(way, &self.table, key, &mut out)?,
            })?;
            Ok(std::mem::take(&mut out))
        };
        for (key, bytes) in &self.entries {
            ensure!(fetch(*key, false)? == *bytes, "{name}: wrong bytes of the file {key:016x}");
            if self.list.keys.contains(key) {
                let right = fetch(*key, true)? == bytes[..LISTED_BYTES];
                ensure!(right, "{name}: wrong bytes of the listed file {key:016x}");
            }
        }
        let mut measure = |keys: &[u64], from_list: bool| -> Result<Latency> {
            let mut samples = Vec::with_capacity(SAMPLES);
            for key in keys.iter().cycle().take(SAMPLES) {
                let start = Instant::now();
                fetch(*key, from_list)?;
                samples.push(start.elapsed());
            }
            Ok(Latency::of(samples))
        };
        let keys: Vec<u64> = self.entries.iter().map(|(key, _)| *key).collect();
        let (table, list) = (measure(&keys, false)?, measure(&self.list.keys, true)?);
        Ok(Measured { way: name, table, list })
    }
}

/// Prints the measurements as a table.
pub(super) fn show(all: &[Measured], listed: usize) {
    let list = format!("in a list of {listed}");
    let mut table = output::table(["a file's bytes, looked up by", "in a hash table", &list]);
    for Measured { way, table: from_table, list } in all {
        let cell = |l: &Latency| format!("{:.1} µs (p99 {:.1})", l.median_us, l.p99_us);
        table.add_row([(*way).to_owned(), cell(from_table), cell(list)]);
    }
    output::align_right(&mut table, 1..3);
    println!("{table}");
}
