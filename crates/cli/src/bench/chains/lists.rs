//! Traversal of a linked list, by range (Figure 13).

use anyhow::{Result, ensure};
use remora::offload::chain::offload::list::{self, NODE};
use remora::offload::chain::offload::table::{KEY_MAX, Value};

use super::super::figure::{Figure, Point, Style, median_us};
use super::super::row::Run;
use super::extent::Extent;
use crate::draws::Draws;
use crate::ways::asker::Asker;
use crate::ways::lookup::{Way, expect_found};
use crate::ways::served::NODES;
use crate::ways::{Client, Image, List};

/// The numbers of nodes among which the key is drawn.
const RANGES: [usize; 4] = [1, 2, 4, 8];
/// Bytes of values.
const VALUE: usize = 64;

/// The same list in two forms: for chains and READs, and for the kernel.
pub(super) struct Lists {
    first: u64,
    kernel: List,
    values: Vec<(u64, Vec<u8>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Walk {
    Unrolled,
    Walking,
    OneSided,
    TwoSided,
    Kernel,
}

const WALKS: [(Walk, &str); 5] = [
    (Walk::Unrolled, "chain"),
    (Walk::Walking, "chain, with break"),
    (Walk::OneSided, "one-sided READs"),
    (Walk::TwoSided, "two-sided, polling"),
    (Walk::Kernel, "kernel"),
];

impl Lists {
    pub(super) fn put(image: &mut Image) -> Result<Lists> {
        let mut draws = Draws::new(23);
        let values: Vec<(u64, Vec<u8>)> =
            (0..NODES).map(|_| (draws.number() & KEY_MAX | 1, draws.bytes(VALUE))).collect();
        let mut nodes = Vec::new();
        for (key, value) in &values {
            let at = Value { addr: image.put(value)?, len: u32::try_from(value.len())? };
            nodes.push((*key, at));
        }
        let first = image.reserve((NODES + 1) * NODE as usize)?;
        image.set(first, &list::nodes(first, &nodes));
        let by_ref: Vec<(u64, &[u8])> = values.iter().map(|(k, v)| (*k, &v[..])).collect();
        Ok(Lists { first, kernel: image.list(&by_ref)?, values })
    }

    /// Finds every key in every way, and compares.
    pub(super) fn verify(&self, client: &Client) -> Result<()> {
        for (walk, _) in WALKS {
            for (key, value) in &self.values {
                let mut out = Vec::new();
                self.find(client, walk, *key, &mut out)?;
                if let Some(asker) = asker(client, walk)? {
                    out = asker.answer(u32::try_from(value.len())?)?;
                } else if walk == Walk::OneSided {
                    out.resize(value.len(), 0);
                    client.local.read_at(0, &mut out)?;
                }
                ensure!(out == *value, "{walk:?} found wrong bytes for the key {key:#x}");
            }
        }
        Ok(())
    }

    fn find(&self, client: &Client, walk: Walk, key: u64, out: &mut Vec<u8>) -> Result<()> {
        if let Some(asker) = asker(client, walk)? {
            let len = asker.ask(&list::message(key, self.first))?;
            return expect_found(len as usize == VALUE);
        }
        if walk == Walk::Kernel {
            out.clear();
            return expect_found(client.list_value(Way::Kernel, &self.kernel, key, out)?);
        }
        let mut at = self.first;
        loop {
            client.read(at, NODE as u32)?;
            let mut node = [[0; 8]; NODE as usize / 8];
            client.local.read_at(0, node.as_flattened_mut())?;
            let [value, len, its_key, next] = node.map(u64::from_le_bytes);
            if its_key == key {
                return client.read(value, u32::try_from(len)?);
            }
            expect_found(its_key != list::END)?;
            at = next;
        }
    }

    /// Figure 13.
    pub(super) fn traversals(&self, client: &Client, extent: Extent) -> Result<Figure> {
        let mut points = Vec::new();
        for range in RANGES {
            let way = |(walk, _)| -> Run<'_> {
                let (mut draws, mut out) = (Draws::new(range as u64), Vec::new());
                Box::new(move || {
                    median_us(extent.calls, |_| {
                        let at = (draws.number() % range as u64) as usize;
                        self.find(client, walk, self.values[at].0, &mut out)
                    })
                })
            };
            points.push(Point::measure(range.to_string(), extent.runs, &mut WALKS.map(way))?);
        }
        let last = &points[points.len() - 1];
        let here = format!(
            "where the key may be in any of 8 nodes, READs take {:.1} × as long as the chain, the \
             chain with break {:.2} ×, two-sided {:.2} ×, the kernel {:.2} ×",
            last.median(2) / last.median(0),
            last.median(1) / last.median(0),
            last.median(3) / last.median(0),
            last.median(4) / last.median(0)
        );
        Ok(Figure {
            id: "fig13",
            origin: "RedN’s Figure 13",
            title: "Linked lists",
            about: "A value of 64 bytes is found in a list of 8 by its key of 48 bits, which is \
                    drawn from the first few. Without break the chain examines all 8 nodes. \
                    READs follow each pointer by a round trip.",
            x: "range in which the key may be",
            y: "latency",
            unit: "µs",
            style: Style::Lines,
            ways: WALKS.map(|(_, name)| name.to_owned()).into(),
            points,
            paper: "the chain is up to 2 × as fast as the others; with break it is slower than \
                    without, but runs 30 work requests on average where the other runs 65 % more",
            here,
        })
    }
}

fn asker(client: &Client, walk: Walk) -> Result<Option<&Asker>> {
    let askers = client.askers()?;
    Ok(match walk {
        Walk::Unrolled => Some(&askers.unrolled),
        Walk::Walking => Some(&askers.walking),
        Walk::TwoSided => Some(&askers.cpu),
        Walk::OneSided | Walk::Kernel => None,
    })
}
