//! Look-ups in linked lists by length (Figure 7) and in a hash table by the size of its values
//! (Figure 8): by a kernel, by READs, and by an RPC over TCP.

use anyhow::{Result, ensure};
use remora::kernel::builtin::RemoteTable;

use super::super::figure::{Calls, Figure, Point, Style, each_us, median};
use super::super::row::Run;
use super::extent::{Extent, STRUCTURES, size_label};
use crate::draws::Draws;
use crate::ways::lookup::{Way, expect_found};
use crate::ways::{Client, Image, List};

/// The lengths of the lists.
const LENGTHS: [usize; 4] = [4, 8, 16, 32];
/// Bytes of a list's values.
const LIST_VALUE: usize = 64;
/// Bytes of values and objects.
pub(super) const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
/// Keys of each hash table.
const KEYS: usize = 256;
const WAYS: [(Way, &str); 3] =
    [(Way::Kernel, "kernel"), (Way::Reads, "one-sided READs"), (Way::Rpc, "RPC over TCP")];

/// The structures in the peer's memory.
#[derive(Debug)]
pub(super) struct Structures {
    lists: Vec<List>,
    tables: Vec<(RemoteTable, Vec<u64>)>,
    /// Objects: one with a right checksum and one with a wrong one.
    pub(super) objects: Vec<(u64, u64)>,
}

impl Structures {
    /// Makes the structures, and WRITEs them to the peer.
    pub(super) fn load(client: &Client) -> Result<Structures> {
        let mut draws = Draws::new(7);
        let mut image = Image::new(client.ready.memory.addr, STRUCTURES as usize);
        let mut entries = |count: usize, len: usize| -> Vec<(u64, Vec<u8>)> {
            (0..count).map(|_| (draws.number(), draws.bytes(len))).collect()
        };
        let mut all = Structures { lists: Vec::new(), tables: Vec::new(), objects: Vec::new() };
        let mut values = Vec::new();
        for length in LENGTHS {
            let entries = entries(length, LIST_VALUE);
            let by_ref: Vec<(u64, &[u8])> = entries.iter().map(|(k, v)| (*k, &v[..])).collect();
            all.lists.push(image.list(&by_ref)?);
            values.push(entries);
        }
        for size in SIZES {
            let entries = entries(KEYS, size);
            let by_ref: Vec<(u64, &[u8])> = entries.iter().map(|(k, v)| (*k, &v[..])).collect();
            let keys = entries.iter().map(|(key, _)| *key).collect();
            all.tables.push((image.table(&by_ref)?, keys));
            values.push(entries);
        }
        for size in SIZES {
            let data = Draws::new(size as u64).bytes(size - 8);
            let right = image.object(&data)?;
            let wrong = image.put(&vec![1; size])?;
            all.objects.push((right, wrong));
        }
        client.load(&image)?;
        all.verify(client, &values)?;
        Ok(all)
    }

    /// The hash table of values of this size, and its keys.
    pub(super) fn table(&self, size: usize) -> &(RemoteTable, Vec<u64>) {
        let at = SIZES.iter().position(|s| *s == size).unwrap_or(0);
        &self.tables[at]
    }

    /// Looks up every key in every way, and compares.
    fn verify(&self, client: &Client, values: &[Vec<(u64, Vec<u8>)>]) -> Result<()> {
        let mut out = Vec::new();
        let mut all = |way: Way| {
            for (i, (key, value)) in
                values.iter().enumerate().flat_map(|(i, v)| v.iter().map(move |entry| (i, entry)))
            {
                out.clear();
                let found = match self.lists.get(i) {
                    Some(list) => client.list_value(way, list, *key, &mut out)?,
                    None => {
                        let (table, _) = &self.tables[i - self.lists.len()];
                        client.table_value(way, table, *key, &mut out)?
                    }
                };
                ensure!(found && out == *value, "{way:?} fetched wrong bytes for the key {key:#x}");
            }
            Ok(())
        };
        all(Way::Kernel)?;
        all(Way::Reads)?;
        client.with_rpcs(|| all(Way::Rpc))
    }
}

/// Measures a way; RPCs while the peer's CPU serves them.
fn measured<'a>(
    client: &'a Client,
    way: Way,
    calls: usize,
    mut call: impl FnMut(&mut Vec<u8>) -> Result<bool> + 'a,
) -> Calls<'a> {
    let mut out = Vec::new();
    let mut run = move || {
        each_us(calls, |_| {
            out.clear();
            expect_found(call(&mut out)?)
        })
    };
    Box::new(move || if way == Way::Rpc { client.with_rpcs(&mut run) } else { run() })
}

/// Fetches the value of the last element of the list of eight.
pub(super) fn last_of_eight<'a>(
    client: &'a Client,
    structures: &'a Structures,
    way: Way,
    calls: usize,
) -> Run<'a> {
    let list = &structures.lists[1];
    let key = list.keys[list.keys.len() - 1];
    median_of(measured(client, way, calls, move |out| client.list_value(way, list, key, out)))
}

/// A run whose result is the median of its calls.
pub(super) fn median_of(mut calls: Calls<'_>) -> Run<'_> {
    Box::new(move || calls().map(|calls| median(&calls)))
}

/// Fetches values of `size` bytes from a hash table.
pub(super) fn table_of<'a>(
    client: &'a Client,
    structures: &'a Structures,
    size: usize,
    way: Way,
    calls: usize,
) -> Calls<'a> {
    let (table, keys) = structures.table(size);
    let mut draws = Draws::new(3);
    measured(client, way, calls, move |out| client.table_value(way, table, draws.one_of(keys), out))
}

/// Figure 7.
pub(super) fn lists(client: &Client, structures: &Structures, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for list in &structures.lists {
        let way = |(way, _)| {
            let mut draws = Draws::new(list.keys.len() as u64);
            measured(client, way, extent.calls, move |out| {
                client.list_value(way, list, draws.one_of(&list.keys), out)
            })
        };
        let label = list.keys.len().to_string();
        points.push(Point::of_calls(label, extent.runs, &mut WAYS.map(way), median)?);
    }
    let (first, last) = (&points[0], &points[points.len() - 1]);
    let growth = |way: usize| last.median(way) / first.median(way);
    let here = format!(
        "from 4 to 32 elements, the kernel takes {:.1} × as long, READs {:.1} ×, the RPC {:.1} ×",
        growth(0),
        growth(1),
        growth(2)
    );
    Ok(Figure {
        id: "fig7",
        origin: "StRoM’s Figure 7",
        title: "Linked lists",
        about: "A value of 64 bytes is fetched by its key, drawn evenly from the list's. READs \
                follow each pointer by a round trip; the kernel, and the peer's CPU, follow them \
                where the list is. Whiskers: the 1st and 99th percentile of all calls.",
        x: "elements of the list",
        y: "latency",
        unit: "µs",
        style: Style::Lines,
        ways: WAYS.map(|(_, name)| name.to_owned()).into(),
        points,
        paper: "READs grow linearly with the length, the kernel less than linearly (1.5 µs an \
                element, over PCIe), the RPC not at all",
        here,
    })
}

/// Figure 8.
pub(super) fn tables(client: &Client, structures: &Structures, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for size in SIZES {
        let way = |(way, _)| table_of(client, structures, size, way, extent.calls);
        let label = size_label(size as u64);
        points.push(Point::of_calls(label, extent.runs, &mut WAYS.map(way), median)?);
    }
    let saved = points.iter().map(|p| p.median(1) - p.median(0));
    let mean = saved.sum::<f64>() / points.len() as f64;
    let here = format!("the kernel saves {mean:.1} µs a look-up, the mean of all sizes");
    Ok(Figure {
        id: "fig8",
        origin: "StRoM’s Figure 8",
        title: "Hash table",
        about: "A value is fetched by its key from a hash table in Pilaf's layout, three quarters \
                full. READs take at least two round trips: entry, then value. Whiskers: the 1st \
                and 99th percentile of all calls.",
        x: "size of the value",
        y: "latency",
        unit: "µs",
        style: Style::Lines,
        ways: WAYS.map(|(_, name)| name.to_owned()).into(),
        points,
        paper: "the kernel saves around 5 µs a look-up; the RPC suffers from values above 256 B",
        here,
    })
}
