//! Consistent reading: CRC64 on the peer's card, beside a READ that this side checks and one that
//! is not checked, by the size of the object (Figure 9) and by the rate of failures (Figure 10).

use anyhow::{Result, ensure};

use super::super::figure::{Calls, Figure, Point, Style, each_us, mean, median};
use super::extent::{Extent, size_label};
use super::lookups::{SIZES, Structures};
use crate::draws::Draws;
use crate::ways::Client;

/// The probabilities that the first reading is inconsistent.
const RATES: [(f64, &str); 6] =
    [(0.0, "0"), (0.001, "0.1 %"), (0.01, "1 %"), (0.1, "10 %"), (0.5, "50 %"), (1.0, "100 %")];
/// Bytes of the objects of Figure 10.
const FAILING: [usize; 2] = [512, 4096];

fn place(size: usize) -> usize {
    SIZES.iter().position(|s| *s == size).unwrap_or(0)
}

/// Fetches an object through the kernel that checks it.
pub(super) fn checked<'a>(
    client: &'a Client,
    structures: &'a Structures,
    size: usize,
    calls: usize,
) -> Calls<'a> {
    let (object, _) = structures.objects[place(size)];
    Box::new(move || each_us(calls, |_| client.read_checked(object, size as u32)))
}

/// Figure 9.
pub(super) fn sizes(client: &Client, structures: &Structures, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for (size, (object, _)) in SIZES.into_iter().zip(structures.objects.iter().copied()) {
        let len = size as u32;
        let mut out = Vec::new();
        let ways: &mut [Calls<'_>] = &mut [
            checked(client, structures, size, extent.calls),
            Box::new(move || {
                each_us(extent.calls, |_| {
                    out.clear();
                    ensure!(
                        client.fetch_checked(object, len, &mut out)?,
                        "an object does not fit its checksum"
                    );
                    Ok(())
                })
            }),
            Box::new(move || each_us(extent.calls, |_| client.read(object, len))),
        ];
        points.push(Point::of_calls(size_label(size as u64), extent.runs, ways, median)?);
    }
    let last = &points[points.len() - 1];
    let more = |way: usize| (last.median(way) / last.median(2) - 1.0) * 100.0;
    let here = format!(
        "for 4 KiB, checking here adds {:.0} % to a READ, the kernel {:.2} µs ({:.0} %)",
        more(1),
        last.median(0) - last.median(2),
        more(0)
    );
    Ok(Figure {
        id: "fig9",
        origin: "StRoM’s Figure 9",
        title: "Checked reading, by size",
        about: "An object that ends with the CRC64 of its data is fetched. The checksum is \
                verified on the peer's card, by the requester, or not at all. Both use carry-less \
                multiplication, which the paper's CPU baseline did not have for CRC64. Whiskers: \
                the 1st and 99th percentile of all calls.",
        x: "size of the object",
        y: "latency",
        unit: "µs",
        style: Style::Lines,
        ways: ["kernel", "READ, checked here", "READ, unchecked"].map(str::to_owned).into(),
        points,
        paper: "CRC64 on the CPU adds up to 40 % to a READ, the kernel 1 µs (less than 8 %)",
        here,
    })
}

/// Figure 10.
pub(super) fn failures(client: &Client, structures: &Structures, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for (rate, label) in RATES {
        let mut ways: Vec<Calls<'_>> = Vec::new();
        for size in FAILING {
            let [kernel, here] = failing(client, structures, size, rate, extent.calls);
            ways.extend([kernel, here]);
        }
        points.push(Point::of_calls(label.into(), extent.runs, &mut ways, mean)?);
    }
    let name = |size: usize| {
        let size = size_label(size as u64);
        [format!("kernel, {size}"), format!("READ, checked here, {size}")]
    };
    let more =
        |point: &Point, way: usize| (point.median(way) / points[0].median(way) - 1.0) * 100.0;
    let here = format!(
        "for 4 KiB, 10 % of failures add {:.0} % to the READ and {:.0} % to the kernel; 50 % add \
         {:.0} % and {:.0} %",
        more(&points[3], 3),
        more(&points[3], 2),
        more(&points[4], 3),
        more(&points[4], 2)
    );
    Ok(Figure {
        id: "fig10",
        origin: "StRoM’s Figure 10",
        title: "Checked reading, by failures",
        about: "As before, but the first reading of an object is inconsistent with some \
                probability; the second is always right, as in the paper. The requester pays a \
                round trip for it, the kernel a second look at memory. Means, not medians; \
                whiskers: the 1st and 99th percentile of all calls.",
        x: "probability that the first reading is inconsistent",
        y: "mean latency",
        unit: "µs",
        style: Style::Lines,
        ways: FAILING.into_iter().flat_map(name).collect(),
        points,
        paper: "up to 1 % barely matters; at 10 % the READ's overhead can be measured; the \
                kernel's stays minimal up to 50 %",
        here,
    })
}

/// An object whose first reading fails with probability `rate`: through the kernel, and by READs.
fn failing<'a>(
    client: &'a Client,
    structures: &'a Structures,
    size: usize,
    rate: f64,
    calls: usize,
) -> [Calls<'a>; 2] {
    let (right, wrong) = structures.objects[place(size)];
    let len = size as u32;
    let (mut out, mut draws) = (Vec::new(), Draws::new(5));
    let kernel: Calls<'a> = Box::new(move || {
        each_us(calls, |_| {
            out.clear();
            let wrong = draws.happens(rate).then_some(wrong);
            client.checked_by_kernel(right, len, wrong, &mut out)
        })
    });
    let (mut out, mut draws) = (Vec::new(), Draws::new(5));
    let reads: Calls<'a> = Box::new(move || {
        each_us(calls, |_| {
            out.clear();
            if draws.happens(rate) {
                let consistent = client.fetch_checked(wrong, len, &mut out)?;
                ensure!(!consistent, "a check accepted an object with a wrong checksum");
            }
            ensure!(
                client.fetch_checked(right, len, &mut out)?,
                "an object does not fit its checksum"
            );
            Ok(())
        })
    });
    [kernel, reads]
}
