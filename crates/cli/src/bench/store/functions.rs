//! Gets that do something with the value: conditional reads by size (Caribou's Figure 11), and
//! functions that are added to a get (Figure 13).

use anyhow::{Context, Result};
use remora_store::select::selection::Output;
use remora_store::way::call::{Call, Condition, Operation};

use super::super::figure::{Figure, Point, Style, add_said};
use super::super::row::Run;
use super::bed::{Bed, Space, figure, key};
use super::extent::Extent;
use super::latencies::{below, of_size, selection};
use super::rates::{ALL, beside_flat};

const SIZES: [usize; 4] = [64, 256, 1024, 4096];
/// Bytes of a value in Figure 13.
const VALUE: usize = 512;

/// Thousands of gets a second from these keys, under a condition if there is a plan, which all of
/// them meet.
fn rate(bed: &Bed, extent: Extent, space: Space, keys: Vec<u64>, plan: Option<Vec<u8>>) -> Run<'_> {
    Box::new(move || {
        let mut keys = keys.iter().cycle();
        let condition = plan.as_deref().map_or(Condition::None, Condition::Predicate);
        let ran = bed.callers.run(extent.rate / 2, ALL, |bytes| {
            let key = key(*keys.next().context("no keys")?);
            let tablespace = space as u16;
            Call { tablespace, key: &key, condition, ..Call::default() }.write(bytes)?;
            Ok(Operation::Get)
        })?;
        Ok(ran.rate())
    })
}

/// Figure 11. A read whose condition does not hold answers with a status only.
pub(super) fn conditional(bed: &Bed, extent: Extent) -> Result<Figure> {
    let (all, none) = (below(1000)?, below(0)?);
    let mut points = Vec::new();
    for len in SIZES {
        let keys = of_size(bed, Space::First, len)?;
        let refused = |plan: Vec<u8>| -> Run<'_> {
            let keys = keys.clone();
            Box::new(move || {
                let mut keys = keys.iter().cycle();
                let ran = bed.callers.run_refused(extent.rate / 2, ALL, |bytes| {
                    let key = key(*keys.next().context("no keys")?);
                    let condition = Condition::Predicate(&plan);
                    Call { key: &key, condition, ..Call::default() }.write(bytes)?;
                    Ok(Operation::Get)
                })?;
                Ok(ran.rate())
            })
        };
        let plain = |plan| rate(bed, extent, Space::First, keys.clone(), plan);
        let mut ways = vec![plain(Some(all.clone())), refused(none.clone()), plain(None)];
        points.push(Point::measure(len.to_string(), extent.runs, &mut ways)?);
    }
    let ratio = |point: &Point, way: usize| point.median(way) / point.median(2);
    let last = &points[points.len() - 1];
    let here = format!(
        "as multiples of plain reads: at 64 B {:.2} if all match and {:.2} if none does, at 4 KiB \
         {:.2} and {:.2}",
        ratio(&points[0], 0),
        ratio(&points[0], 1),
        ratio(last, 0),
        ratio(last, 1)
    );
    let flat = points[0].median(1);
    add_said(&mut points, |_| flat);
    let ways = ["all match", "none matches", "plain reads", "none matches, flat as Caribou’s"];
    Ok(Figure {
        origin: "Caribou’s Figure 11",
        title: "Conditional reads",
        about: "Gets with a comparison of a column, by 16 clients with 128 calls in flight. If it \
                does not hold, a status answers instead of the value.",
        y: "rate",
        unit: "K/s",
        ways: ways.map(str::to_owned).into(),
        paper: "bound by the network, not by selection: by requests (48 B of parameters) while \
                values are small or nothing matches, by answers where values are long and match",
        here,
        ..figure("fig11", points)
    })
}

/// Figure 13.
pub(super) fn added(bed: &Bed, extent: Extent) -> Result<Figure> {
    let needle = |predicate: &str| -> Result<Vec<u8>> {
        Ok(selection(predicate, Output::Whole)?.to_bytes()?)
    };
    // Every tenth value has the needle; only those are asked for, so that each answer has a value.
    let with_needle = |space| -> Result<Vec<u64>> {
        let keys = of_size(bed, space, VALUE)?;
        Ok(keys.into_iter().filter(|number| number.is_multiple_of(10)).collect())
    };
    let (plain, packed) = (with_needle(Space::First)?, with_needle(Space::Compressed)?);
    let substring = "text like '%nee%dle%'";
    let first = |plan| rate(bed, extent, Space::First, plain.clone(), plan);
    let compressed = |plan| rate(bed, extent, Space::Compressed, packed.clone(), plan);
    let names =
        ["get", "8 comparisons", "substring", "regular expression", "LZ4", "LZ4, substring"];
    let eight = (0..8).map(|i| format!("n < {}", 1000 + i)).collect::<Vec<_>>().join(" and ");
    let mut rates = vec![
        first(None),
        first(Some(needle(&eight)?)),
        first(Some(needle(substring)?)),
        first(Some(needle("text matches 'n[e]+d.e'")?)),
        compressed(None),
        compressed(Some(needle(substring)?)),
    ];
    let all = Point::measure(String::new(), extent.runs, &mut rates)?;
    let base = all.median(0);
    let points = beside_flat(&all, names.map(str::to_owned).into_iter());
    let least = points.iter().map(|point| point.median(0)).fold(f64::INFINITY, f64::min);
    Ok(Figure {
        origin: "Caribou’s Figure 13",
        title: "Functions added to a get",
        about: "Gets of 512 B, every answer has the value: plain, with a condition, and from a \
                tablespace whose values are compressed. 16 clients, 128 calls in flight; the \
                functions run on the core that serves.",
        x: "what is added",
        y: "rate, of plain gets",
        unit: "%",
        style: Style::Bars,
        ways: ["store", "Caribou, as the paper says"].map(str::to_owned).into(),
        paper: "an FPGA is bound by the network with and without (1.99 million a second); MemC3, a \
                store in software, falls with each function",
        here: format!(
            "{base:.0} thousand plain gets a second; with functions, no less than {least:.0} % of \
             that"
        ),
        ..figure("fig13", points)
    })
}
