//! Segments that go: those that a snapshot makes useless, and those behind a cut.

use std::io;

use super::Position;
use super::replay::segments;
use super::segment::segment_name;
use crate::disk::Disk;

/// Removes the segments that begin after `to`. The last one goes first, so that the log has no hole
/// whenever this ends.
pub(super) fn remove_after<D: Disk>(disk: &D, to: Position) -> io::Result<()> {
    let segments = segments(disk).map_err(io::Error::other)?;
    let after = segments.iter().rev().take_while(|first| first.counter() > to.counter());
    let mut removed = false;
    for first in after {
        disk.remove(&segment_name(*first))?;
        removed = true;
    }
    if removed { disk.sync() } else { Ok(()) }
}

/// Removes the segments of which a snapshot up to `position` has everything.
///
/// # Errors
///
/// What the operating system says; segments that are left are removed the next time.
pub fn remove_before<D: Disk>(disk: &D, position: Position) -> io::Result<usize> {
    let segments = segments(disk).map_err(io::Error::other)?;
    let mut removed = 0;
    for (segment, next) in segments.iter().zip(segments.iter().skip(1)) {
        if next.counter() > position.counter() + 1 {
            break;
        }
        disk.remove(&segment_name(*segment))?;
        removed += 1;
    }
    if removed > 0 {
        disk.sync()?;
    }
    Ok(removed)
}
