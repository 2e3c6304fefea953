//! What an ELF file says of how it is loaded, as far as that decides whether a program can run on
//! Remora's library.
//!
//! The file may hold anything: every offset is checked, and parts that lie outside of the file are
//! treated as missing.

use std::path::Path;
use std::{fs, io};

/// The machine type of this program.
const OUR_MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// More entries than any real file has; a limit for loops.
const MANY: usize = 100_000;

/// Types of program headers.
const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
/// Tags of the dynamic section.
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const DT_VERDEF: u64 = 0x6FFF_FFFC;

/// An ELF file, as far as it could be parsed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Elf {
    /// Is it 64-bit, and for this kind of machine? If not, the other fields are empty.
    pub(crate) native: bool,
    /// The dynamic linker that it names; `None` for a static program, and for a library.
    pub(crate) interpreter: Option<String>,
    /// Does it have a dynamic section?
    pub(crate) dynamic: bool,
    /// The libraries that it needs.
    pub(crate) needed: Vec<String>,
    /// Folders searched for them before `LD_LIBRARY_PATH`. Empty unless `runpath` is.
    pub(crate) rpath: String,
    /// Folders searched for them after `LD_LIBRARY_PATH`.
    pub(crate) runpath: String,
    /// The symbol versions that it defines.
    pub(crate) versions: Vec<String>,
}

/// Reads a file; `None` if it is not ELF.
pub(crate) fn read(path: &Path) -> io::Result<Option<Elf>> {
    let bytes = fs::read(path)?;
    Ok(bytes.starts_with(b"\x7FELF").then(|| parse(&bytes).unwrap_or_default()))
}

/// Reads little-endian numbers from bytes that may end anywhere.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn number(self, at: u64, size: usize) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let bytes = self.0.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(self, at: u64) -> Option<String> {
        let rest = self.0.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    }
}

/// A part of the file, and its place in memory.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    len: u64,
}

fn parse(file: &[u8]) -> Option<Elf> {
    let bytes = Bytes(file);
    // 64-bit and little-endian, as this program is.
    if file.get(4..6)? != [2, 1] || bytes.number(18, 2)? != u64::from(OUR_MACHINE) {
        return None;
    }
    let mut elf = Elf { native: true, ..Elf::default() };
    let (table, size, count) = (bytes.number(32, 8)?, bytes.number(54, 2)?, bytes.number(56, 2)?);
    let segments: Vec<Segment> = (0..count)
        .map_while(|i| {
            let at = table.checked_add(i * size)?;
            Some(Segment {
                kind: bytes.number(at, 4)?,
                offset: bytes.number(at.checked_add(8)?, 8)?,
                address: bytes.number(at.checked_add(16)?, 8)?,
                len: bytes.number(at.checked_add(32)?, 8)?,
            })
        })
        .collect();
    for segment in &segments {
        match segment.kind {
            PT_INTERP => elf.interpreter = bytes.text(segment.offset),
            PT_DYNAMIC => {
                elf.dynamic = true;
                dynamic(bytes, segment, &segments, &mut elf);
            }
            _ => {}
        }
    }
    Some(elf)
}

/// Reads the dynamic section, leaving out what is broken in it.
fn dynamic(bytes: Bytes<'_>, section: &Segment, segments: &[Segment], elf: &mut Elf) -> Option<()> {
    let entries: Vec<(u64, u64)> = (0..section.len / 16)
        .map_while(|i| {
            let at = section.offset.checked_add(i * 16)?;
            Some((bytes.number(at, 8)?, bytes.number(at.checked_add(8)?, 8)?))
        })
        .take_while(|(tag, _)| *tag != 0)
        .take(MANY)
        .collect();
    let offset_of = |address: u64| {
        let within = |s: &&Segment| {
            s.kind == PT_LOAD && address.checked_sub(s.address).is_some_and(|at| at < s.len)
        };
        let segment = segments.iter().find(within)?;
        segment.offset.checked_add(address - segment.address)
    };
    let value = |tag| entries.iter().find(|(found, _)| *found == tag).map(|(_, value)| *value);
    let strings = offset_of(value(DT_STRTAB)?)?;
    let text = |at: u64| bytes.text(strings.checked_add(at)?);
    let needed = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
    elf.needed = needed.filter_map(|(_, at)| text(*at)).collect();
    elf.runpath = value(DT_RUNPATH).and_then(text).unwrap_or_default();
    if elf.runpath.is_empty() {
        // The linker ignores DT_RPATH if there is a DT_RUNPATH.
        elf.rpath = value(DT_RPATH).and_then(text).unwrap_or_default();
    }
    // Verdef: flags, index, names (each 2 bytes), hash, first name, next (each 4 bytes).
    let mut node = offset_of(value(DT_VERDEF)?)?;
    for _ in 0..MANY {
        let name = node.checked_add(bytes.number(node.checked_add(12)?, 4)?)?;
        elf.versions.push(text(bytes.number(name, 4)?)?);
        match bytes.number(node.checked_add(16)?, 4)? {
            0 => break,
            next => node = node.checked_add(next)?,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_programs_own_file_is_parsed() {
        let ourselves = std::env::current_exe().unwrap();
        let elf = read(&ourselves).unwrap().unwrap();
        assert!(elf.native && elf.dynamic && elf.interpreter.is_some(), "{elf:?}");
        assert!(elf.needed.iter().any(|name| name == "libc.so.6"), "{elf:?}");
    }

    #[test]
    fn the_version_nodes_of_the_c_library_are_found() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.lines().find_map(|line| {
            line.split_ascii_whitespace().last().filter(|path| path.ends_with("/libc.so.6"))
        });
        let elf = read(Path::new(libc.unwrap())).unwrap().unwrap();
        assert!(elf.versions.iter().any(|name| name == "GLIBC_2.17"), "{:?}", elf.versions);
    }

    #[test]
    fn a_broken_file_never_panics() {
        let ourselves = fs::read(std::env::current_exe().unwrap()).unwrap();
        for end in (0..4096).chain([ourselves.len() / 2]) {
            parse(&ourselves[..end.min(ourselves.len())]);
        }
        // Each byte of the headers at its highest value, one after the other.
        let mut bytes = ourselves[..ourselves.len().min(1 << 16)].to_vec();
        for at in 0..1024.min(bytes.len()) {
            let was = std::mem::replace(&mut bytes[at], 0xFF);
            parse(&bytes);
            bytes[at] = was;
        }
        assert_eq!(parse(b"\x7FELF"), None);
    }
}
