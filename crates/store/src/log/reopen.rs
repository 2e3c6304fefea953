//! The log of a directory: read back, and ready for more.

use std::io;
use std::sync::Arc;

use remora::memory::PageAligned;

use super::commit::Segment;
use super::replay::segments;
use super::segment::{LOG_MAGIC, SEGMENT_HEADER, SegmentHeader, TEMPORARY, segment_name};
use super::{Committer, Fields, Log, Parts, Position, ReplayError, Replayed, replay};
use crate::disk::{Disk, File, read_full};

/// Bytes that are written again at a time.
const PIECE: usize = 1 << 20;

/// Reads the log back, giving `visit` every record after `from` that `parts` asks for, and lets
/// `log` go on after the last one; answers what writes it. `log` is a new one.
///
/// # Errors
///
/// [`ReplayError`].
pub fn open_log<D: Disk>(
    disk: &Arc<D>,
    log: &Log,
    from: Position,
    parts: Parts,
    visit: &mut dyn FnMut(Position, &Fields<'_>) -> Result<(), String>,
) -> Result<(Committer<D>, Replayed), ReplayError> {
    let replayed = replay(&**disk, from, parts, visit)?;
    let last = settle(&**disk, &replayed)?;
    log.begin(replayed.last);
    Ok((Committer::new(Arc::clone(disk), log.clone(), last), replayed))
}

/// What was read back may be in the memory of the operating system only, if the store's process
/// ended and the machine did not: since it was never synced, or since a sync has failed, after
/// which the next ones say nothing. So what is not known to be on the disk is written again, and is
/// there before anybody sees it. Answers the last segment.
fn settle<D: Disk>(disk: &D, replayed: &Replayed) -> Result<Option<Segment<D::File>>, ReplayError> {
    let failed = |file: &str, source: io::Error| ReplayError::Io {
        place: disk.place(),
        file: file.to_owned(),
        source,
    };
    let settled = |name: String| {
        let file = disk.open(&name)?;
        write_again(&file, replayed.unsure)?;
        segment_of(file, name, replayed.end)
    };
    let last = segments(disk)?.last().map(|first| segment_name(*first));
    let last = last.map(|name| settled(name.clone()).map_err(|source| failed(&name, source)));
    let last = last.transpose()?;
    for name in disk.list().map_err(|source| failed(".", source))? {
        // A file that a crash left before it was whole.
        if name.ends_with(TEMPORARY) {
            disk.remove(&name).map_err(|source| failed(&name, source))?;
        }
    }
    disk.sync().map_err(|source| failed(".", source))?;
    Ok(last)
}

/// A segment whose records end at `end`.
fn segment_of<F: File>(file: F, name: String, end: u64) -> io::Result<Segment<F>> {
    let mut header = [0; SEGMENT_HEADER];
    let read = read_full(&file, 0, &mut header)?;
    let header = SegmentHeader::decode(LOG_MAGIC, &header[..read]).map_err(io::Error::other)?;
    let (file, name) = (Arc::new(file), name.into());
    Ok(Segment { file, name, salt: header.salt, end, synced: end, ahead: end })
}

/// Writes the bytes of a file again, from this one on, and syncs them.
fn write_again<F: File>(file: &F, mut from: u64) -> io::Result<()> {
    let mut piece = PageAligned::new(PIECE);
    loop {
        let len = read_full(file, from, &mut piece)?;
        if len == 0 {
            return file.sync();
        }
        file.write_at(from, &piece[..len])?;
        from += len as u64;
    }
}
