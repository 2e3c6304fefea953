//! Gets from a hash table: by the size of the value (Figure 10), under collision (Figure 11), and
//! gets a second (Table 4).

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use remora::kernel::builtin::RemoteTable;
use remora::offload::chain::offload::lookup::Lookup;
use remora::offload::chain::offload::table::{KEY_MAX, SLOT, Table, Value};

use super::super::figure::{Figure, Point, Style, median_us};
use super::super::row::{Case, Run, Target};
use super::extent::Extent;
use crate::draws::Draws;
use crate::output;
use crate::ways::asker::{Asker, ask_many};
use crate::ways::lookup::{Way, expect_found};
use crate::ways::served::{ONE, SAME};
use crate::ways::{Client, Image};

/// Bytes of values.
const SIZES: [usize; 5] = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Keys of each table.
const KEYS: usize = 32;
/// Buckets of each table.
const BUCKETS: usize = 1024;
/// Buckets of a neighbourhood, as in FaRM.
const NEIGHBOURS: u64 = 6;
const NEIGHBOURHOOD: u32 = (NEIGHBOURS * SLOT) as u32;

/// Tables that hold the same keys and values in different places.
pub(super) struct Tables {
    sizes: Vec<OfSize>,
}

/// The tables whose values have one size.
struct OfSize {
    len: usize,
    values: Vec<(u64, Vec<u8>)>,
    /// The addresses of the values.
    addresses: Vec<u64>,
    /// A table with every key in its first bucket, and one with every key in its second.
    first: (u64, Table),
    second: (u64, Table),
    /// FaRM's table, with every key at the beginning of its neighbourhood.
    farm: u64,
    kernel: RemoteTable,
}

/// The bucket that holds a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bucket {
    First,
    Second,
}

/// A way to get a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Get {
    /// A chain that examines one bucket.
    Chain,
    /// Chains that examine two buckets, one after the other and at the same time.
    Sequential(Bucket),
    Parallel(Bucket),
    /// READ of a neighbourhood, READ of the value.
    OneSided,
    /// SEND to the peer's CPU.
    TwoSided(Bucket),
    Kernel,
    /// READ of the value alone: the ideal.
    Read,
}

impl Tables {
    /// Puts the tables into the image of the peer's memory.
    pub(super) fn put(image: &mut Image) -> Result<Tables> {
        let mut draws = Draws::new(17);
        let sizes = SIZES.iter().map(|len| OfSize::put(image, *len, &mut draws));
        Ok(Tables { sizes: sizes.collect::<Result<_>>()? })
    }

    fn of(&self, len: usize) -> &OfSize {
        self.sizes.iter().find(|sized| sized.len == len).unwrap_or(&self.sizes[0])
    }

    /// Gets every value in every way, and compares.
    pub(super) fn verify(&self, client: &Client) -> Result<()> {
        use Bucket::{First, Second};
        let ways = [
            Get::Chain,
            Get::Sequential(First),
            Get::Sequential(Second),
            Get::Parallel(First),
            Get::Parallel(Second),
            Get::OneSided,
            Get::TwoSided(First),
            Get::TwoSided(Second),
            Get::Kernel,
            Get::Read,
        ];
        for way in ways {
            for sized in &self.sizes {
                for (i, (key, value)) in sized.values.iter().enumerate() {
                    let got = sized.get_bytes(client, way, i)?;
                    ensure!(got == *value, "{way:?} got wrong bytes for the key {key:#x}");
                }
            }
        }
        client.asleep(|| {
            let sized = &self.sizes[0];
            (0..KEYS).try_for_each(|i| {
                let got = sized.get_bytes(client, Get::TwoSided(First), i)?;
                ensure!(got == sized.values[i].1, "woken, the peer's CPU sends wrong bytes");
                Ok(())
            })
        })
    }

    /// The latency of getting a value of `len` bytes.
    pub(super) fn latency<'a>(
        &'a self,
        client: &'a Client,
        way: Get,
        len: usize,
        calls: usize,
    ) -> Run<'a> {
        let mut get = self.getter(client, way, len);
        Box::new(move || median_us(calls, |_| get()))
    }

    /// Gets the values of randomly drawn keys.
    pub(super) fn getter<'a>(
        &'a self,
        client: &'a Client,
        way: Get,
        len: usize,
    ) -> impl FnMut() -> Result<()> + 'a {
        let sized = self.of(len);
        let mut draws = Draws::new(3);
        let mut out = Vec::new();
        let gets = sized.prepare(way);
        move || {
            let i = (draws.number() % KEYS as u64) as usize;
            sized.get(client, way, (i, &gets[i]), &mut out)
        }
    }
}

impl OfSize {
    fn put(image: &mut Image, len: usize, draws: &mut Draws) -> Result<OfSize> {
        let [mut first, mut second] = [(); 2].map(|()| Table::new(BUCKETS, 1));
        let mut farm = vec![[0u64; SLOT as usize / 8]; BUCKETS + NEIGHBOURS as usize];
        let (mut values, mut addresses, mut used) = (Vec::new(), Vec::new(), HashSet::new());
        while values.len() < KEYS {
            let key = draws.number() & KEY_MAX | 1;
            // No key collides with another.
            if first.buckets(key).iter().any(|bucket| used.contains(bucket)) {
                continue;
            }
            used.extend(first.buckets(key));
            let bytes = draws.bytes(len);
            let at = Value { addr: image.put(&bytes)?, len: u32::try_from(len)? };
            first.insert(key, at)?;
            second.insert_second(key, at)?;
            farm[first.buckets(key)[0] as usize] = [at.addr, u64::from(at.len), key];
            values.push((key, bytes));
            addresses.push(at.addr);
        }
        let farm: Vec<u8> = farm.as_flattened().iter().flat_map(|w| w.to_le_bytes()).collect();
        let by_ref: Vec<(u64, &[u8])> = values.iter().map(|(k, v)| (*k, &v[..])).collect();
        let kernel = image.table(&by_ref)?;
        Ok(OfSize {
            len,
            first: (image.put(&first.bytes())?, first),
            second: (image.put(&second.bytes())?, second),
            farm: image.put(&farm)?,
            kernel,
            values,
            addresses,
        })
    }

    /// The message of each key; a client computes it before it measures.
    fn prepare(&self, way: Get) -> Vec<Vec<u8>> {
        let message = |lookup: Lookup, bucket: Bucket, key: u64| {
            let (at, table) = match bucket {
                Bucket::First => &self.first,
                Bucket::Second => &self.second,
            };
            lookup.message(key, &table.addresses(*at, key))
        };
        let keys = self.values.iter().map(|(key, _)| *key);
        keys.map(|key| match way {
            Get::Chain => message(ONE, Bucket::First, key),
            Get::Sequential(bucket) | Get::TwoSided(bucket) => {
                message(Lookup::HOPSCOTCH, bucket, key)
            }
            Get::Parallel(bucket) => message(Lookup::HOPSCOTCH.in_parallel(), bucket, key),
            Get::OneSided | Get::Kernel | Get::Read => Vec::new(),
        })
        .collect()
    }

    /// Gets one value, which stays in the receive buffer.
    fn get(
        &self,
        client: &Client,
        way: Get,
        (i, message): (usize, &[u8]),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let key = self.values[i].0;
        if let Some(asker) = asker(client, way)? {
            let len = asker.ask(message)?;
            return expect_found(len as usize == self.len);
        }
        match way {
            Get::Kernel => {
                out.clear();
                expect_found(client.table_value(Way::Kernel, &self.kernel, key, out)?)
            }
            Get::OneSided => {
                let home = self.farm + self.first.1.buckets(key)[0] * SLOT;
                client.read(home, NEIGHBOURHOOD)?;
                let mut neighbours = [[0; SLOT as usize]; NEIGHBOURS as usize];
                client.local.read_at(0, neighbours.as_flattened_mut())?;
                let [addr, len, _] = neighbours
                    .iter()
                    .map(slot)
                    .find(|slot| slot[2] == key)
                    .context("a key is not in its neighbourhood")?;
                client.read(addr, u32::try_from(len)?)
            }
            _ => client.read(self.addresses[i], u32::try_from(self.len)?),
        }
    }

    fn get_bytes(&self, client: &Client, way: Get, i: usize) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.get(client, way, (i, &self.prepare(way)[i]), &mut out)?;
        match asker(client, way)? {
            Some(asker) => asker.answer(u32::try_from(self.len)?),
            None if way == Get::Kernel => Ok(out),
            None => {
                out.resize(self.len, 0);
                client.local.read_at(0, &mut out)?;
                Ok(out)
            }
        }
    }
}

fn slot(bytes: &[u8; SLOT as usize]) -> [u64; 3] {
    let (words, _) = bytes.as_chunks::<8>();
    [0, 1, 2].map(|i| u64::from_le_bytes(words[i]))
}

/// The connection that a way uses.
fn asker(client: &Client, way: Get) -> Result<Option<&Asker>> {
    let askers = client.askers()?;
    Ok(match way {
        Get::Chain => askers.one.first(),
        Get::Sequential(_) => Some(&askers.sequential),
        Get::Parallel(_) => Some(&askers.parallel),
        Get::TwoSided(_) => Some(&askers.cpu),
        Get::OneSided | Get::Kernel | Get::Read => None,
    })
}

/// The rows of gets.
pub(super) fn cases<'a>(
    client: &'a Client,
    tables: &'a Tables,
    extent: Extent,
) -> Result<[Case<'a>; 4]> {
    use Bucket::{First, Second};
    let run = |way| tables.latency(client, way, 64, 3 * extent.calls);
    Ok([
        Case::latency(
            "hash_get_64B",
            "one READ, 64 B",
            Target::AtMost(1.3),
            run(Get::Chain),
            run(Get::Read),
        ),
        Case::latency(
            "hash_get_collision",
            "one bucket, no collision",
            Target::AtMost(1.15),
            run(Get::Parallel(Second)),
            run(Get::Chain),
        ),
        Case::latency(
            "hash_get_sequential",
            "one bucket, no collision",
            Target::Any,
            run(Get::Sequential(Second)),
            run(Get::Chain),
        ),
        Case::latency(
            "hash_get_two_sided",
            "two-sided, polling",
            Target::Any,
            run(Get::Chain),
            run(Get::TwoSided(First)),
        ),
    ])
}

/// The same, while the peer's host sleeps.
fn asleep<'a>(client: &'a Client, mut run: Run<'a>) -> Run<'a> {
    Box::new(move || client.asleep(&mut run))
}

/// Figure 10.
pub(super) fn sizes(client: &Client, tables: &Tables, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for size in SIZES {
        let run = |way| tables.latency(client, way, size, extent.calls);
        let ways: &mut [Run<'_>] = &mut [
            run(Get::Chain),
            run(Get::OneSided),
            run(Get::TwoSided(Bucket::First)),
            asleep(client, run(Get::TwoSided(Bucket::First))),
            run(Get::Kernel),
            run(Get::Read),
        ];
        points.push(Point::measure(output::bytes(size as u64), extent.runs, ways)?);
    }
    let (small, large) = (&points[0], &points[points.len() - 1]);
    let ratio = |point: &Point, way: usize| point.median(way) / point.median(0);
    let here = format!(
        "the chain takes {:.2} × a READ of 64 B and {:.2} × one of 64 KB; of 64 B one-sided takes \
         {:.1} × the chain, two-sided {:.1} × polling and {:.1} × by events, the kernel {:.2} ×",
        1.0 / ratio(small, 5),
        1.0 / ratio(large, 5),
        ratio(small, 1),
        ratio(small, 2),
        ratio(small, 3),
        ratio(small, 4)
    );
    Ok(Figure {
        id: "fig10",
        origin: "RedN’s Figure 10",
        title: "Hash get",
        about: "A value is fetched by its key of 48 bits, which is in its first bucket. The chain \
                is the paper’s Fig. 9: one SEND, one answer. One-sided is FaRM’s way: READ the \
                neighbourhood of 6, READ the value. Two-sided is a SEND to the peer’s CPU, which \
                polls, or sleeps until a request arrives. The kernel is Remora’s own GET. READ \
                fetches the value alone: one round trip.",
        x: "size of the value",
        y: "latency",
        unit: "µs",
        style: Style::Lines,
        ways: [
            "chain",
            "one-sided (FaRM)",
            "two-sided, polling",
            "two-sided, event",
            "kernel",
            "READ",
        ]
        .map(str::to_owned)
        .into(),
        points,
        paper: "64 KB take 16.22 µs, within 5 % of a READ; one-sided takes up to 2 × as long, \
                two-sided up to 2 × polling and 3.8 × by events",
        here,
    })
}

/// Figure 11.
pub(super) fn collisions(client: &Client, tables: &Tables, extent: Extent) -> Result<Figure> {
    use Bucket::Second;
    let mut points = Vec::new();
    for size in SIZES {
        let run = |way| tables.latency(client, way, size, extent.calls);
        let ways: &mut [Run<'_>] = &mut [
            run(Get::Parallel(Second)),
            run(Get::Sequential(Second)),
            run(Get::Chain),
            run(Get::OneSided),
            run(Get::TwoSided(Second)),
            run(Get::Read),
        ];
        points.push(Point::measure(output::bytes(size as u64), extent.runs, ways)?);
    }
    let more = |way: usize| points[0].median(way) - points[0].median(2);
    let here = format!(
        "examining two buckets adds {:.2} µs in parallel and {:.2} µs one after the other (64 B): \
         this card has one processor, so both are work, but none waits",
        more(0),
        more(1)
    );
    Ok(Figure {
        id: "fig11",
        origin: "RedN’s Figure 11",
        title: "Hash get under collision",
        about: "As before, but every key is in its second bucket. Chains examine both buckets, one \
                after the other in one queue, or in two queues. One-sided READs find the key in \
                the same neighbourhood as before.",
        x: "size of the value",
        y: "latency",
        unit: "µs",
        style: Style::Lines,
        ways: [
            "chain, parallel",
            "chain, sequential",
            "chain, no collision",
            "one-sided (FaRM)",
            "two-sided, polling",
            "READ",
        ]
        .map(str::to_owned)
        .into(),
        points,
        paper: "in parallel as without collision; one after the other at least 3 µs more",
        here,
    })
}

/// Table 4.
pub(super) fn throughput(client: &Client, tables: &Tables, extent: Extent) -> Result<Figure> {
    let askers = client.askers()?;
    let mut points = Vec::new();
    for size in [64, 1 << 10, 64 << 10] {
        let (sized, count) = (tables.of(size), extent.calls * 10);
        let rate = move |time: Duration| count as f64 / time.as_secs_f64() / 1e3;
        let asked = |way, askers, each| {
            let (gets, mut draws) = (sized.prepare(way), Draws::new(9));
            move || {
                let message = || gets[(draws.number() % KEYS as u64) as usize].clone();
                Ok(rate(ask_many(askers, each, count, message)?))
            }
        };
        let addresses: &[u64] = &sized.addresses;
        let mut draws = Draws::new(9);
        let read = || {
            let from = || draws.one_of(addresses);
            Ok(rate(client.read_many(count, u32::try_from(size)?, from)?))
        };
        let cpu = std::slice::from_ref(&askers.cpu);
        let ways: &mut [Run<'_>] = &mut [
            Box::new(asked(Get::Chain, &askers.one, 1)),
            Box::new(asked(Get::TwoSided(Bucket::First), cpu, SAME)),
            Box::new(read),
        ];
        points.push(Point::measure(output::bytes(size as u64), extent.runs, ways)?);
    }
    let last = points[points.len() - 1].median(0);
    let here = format!(
        "{:.0} thousand gets of 64 B a second, {:.0} thousand of 64 KB, which is {:.1} Gb/s",
        points[0].median(0),
        last,
        last * 1e3 * 65536.0 * 8.0 / 1e9
    );
    Ok(Figure {
        id: "table4",
        origin: "RedN’s Table 4",
        title: "Throughput of hash gets",
        about: "Eight gets under way: for chains on eight connections, as a connection serves one \
                at a time; for the CPU and for READs on one. One core asks, one serves.",
        x: "size of the value",
        y: "rate",
        unit: "thousand/s",
        style: Style::Bars,
        ways: ["chain", "two-sided, polling", "READ"].map(str::to_owned).into(),
        points,
        paper: "500 thousand a second on a single port while the card’s processing is the limit; \
                64 KB at some 92 Gb/s, the port’s limit",
        here,
    })
}
