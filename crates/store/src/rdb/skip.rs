//! Passing over values of types that the store does not have.

use std::io::Read;

use super::RdbError;
use super::source::Source;

/// The name of a type that can be passed over.
pub(super) fn name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        1 | 10 | 14 | 18 => "list",
        2 | 11 | 20 => "set",
        3 | 5 | 12 | 17 => "zset",
        4 | 9 | 13 | 16 => "hash",
        7 => "module",
        15 | 19 | 21 => "stream",
        _ => return None,
    })
}

/// Passes over a value. Work is bounded by the bytes that are there: each step takes one at least.
pub(super) fn skip<R: Read>(source: &mut Source<R>, kind: u8) -> Result<(), RdbError> {
    match kind {
        // Packed into one string.
        9..=13 | 16 | 17 | 20 => source.skip_string(),
        1 | 2 | 14 => strings(source, 1),
        4 => strings(source, 2),
        3 => times(source, |source| {
            source.skip_string()?;
            // A number in digits, or one of three that have none.
            let digits = source.byte()?;
            if digits < 253 { source.skip(u64::from(digits)) } else { Ok(()) }
        }),
        5 => times(source, |source| {
            source.skip_string()?;
            source.skip(8)
        }),
        18 => times(source, |source| {
            source.length()?;
            source.skip_string()
        }),
        7 => {
            source.length()?;
            module(source)
        }
        _ => stream(source, kind),
    }
}

/// What a module wrote: numbers and strings, each after its kind, and a zero.
pub(super) fn module<R: Read>(source: &mut Source<R>) -> Result<(), RdbError> {
    loop {
        match source.length()? {
            0 => return Ok(()),
            1 | 2 => _ = source.length()?,
            3 => source.skip(4)?,
            4 => source.skip(8)?,
            5 => source.skip_string()?,
            _ => return Err(source.damaged("a module wrote something of an unknown kind")),
        }
    }
}

fn times<R: Read>(
    source: &mut Source<R>,
    mut each: impl FnMut(&mut Source<R>) -> Result<(), RdbError>,
) -> Result<(), RdbError> {
    let count = source.length()?;
    for _ in 0..count {
        each(source)?;
    }
    Ok(())
}

fn strings<R: Read>(source: &mut Source<R>, each: u32) -> Result<(), RdbError> {
    times(source, |source| (0..each).try_for_each(|_| source.skip_string()))
}

fn lengths<R: Read>(source: &mut Source<R>, count: u32) -> Result<(), RdbError> {
    (0..count).try_for_each(|_| source.length().map(|_| ()))
}

/// A stream: its nodes, how many entries, the last of them, and from type 19 on the first, the
/// greatest that was deleted and how many there were; then groups, each with what is pending and
/// its consumers.
fn stream<R: Read>(source: &mut Source<R>, kind: u8) -> Result<(), RdbError> {
    strings(source, 2)?;
    lengths(source, if kind >= 19 { 8 } else { 3 })?;
    times(source, |source| {
        source.skip_string()?;
        lengths(source, if kind >= 19 { 3 } else { 2 })?;
        times(source, |source| {
            source.skip(24)?;
            lengths(source, 1)
        })?;
        times(source, |source| {
            source.skip_string()?;
            source.skip(if kind >= 21 { 16 } else { 8 })?;
            times(source, |source| source.skip(16))
        })
    })
}
