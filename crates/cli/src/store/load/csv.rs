//! Rows of CSV.

use std::io::Read;

use anyhow::{Result, bail};
use csv::{ByteRecord, ErrorKind, Position, Reader, ReaderBuilder};

use super::Rows;

/// The most bytes of a row: a key, and a value as text.
const ROW_MAX: u64 = 64 << 20;

/// A file of CSV.
pub(super) struct CsvRows<R> {
    reader: Reader<Bounded<R>>,
    columns: Vec<String>,
    /// The line on which the row begins that was read last.
    line: u64,
}

impl<R: Read> CsvRows<R> {
    /// Reads the first line, which names the columns unless they are given.
    pub(super) fn new(from: R, delimiter: u8, columns: Option<Vec<String>>) -> Result<CsvRows<R>> {
        let mut reader = ReaderBuilder::new()
            .delimiter(delimiter)
            .has_headers(columns.is_none())
            // A row's fields are counted here, so that what is wrong is told in one way.
            .flexible(true)
            .from_reader(Bounded { from, left: ROW_MAX, bytes: 0, tail: tail(delimiter) });
        let columns = match columns {
            Some(columns) => columns,
            None => {
                let header = reader.byte_headers().map_err(told)?.clone();
                let header = if is_tail(&reader, &header)? { ByteRecord::new() } else { header };
                let names = header.iter().map(|name| String::from_utf8_lossy(name).trim().into());
                names.collect()
            }
        };
        if columns.is_empty() {
            bail!("it is empty: its first line has to name the columns");
        }
        let twice = columns
            .iter()
            .enumerate()
            .find(|(at, name)| !name.is_empty() && columns[..*at].contains(name));
        if let Some((_, name)) = twice {
            let name = remora::printable(name);
            bail!("the column `{name}` is named twice: give each column a name of its own");
        }
        Ok(CsvRows { reader, columns, line: 1 })
    }
}

impl<R: Read> Rows for CsvRows<R> {
    fn columns(&self) -> &[String] {
        &self.columns
    }

    fn read(&mut self, row: &mut ByteRecord) -> Result<bool> {
        self.reader.get_mut().left = ROW_MAX;
        if !self.reader.read_byte_record(row).map_err(told)? {
            return Ok(false);
        }
        if is_tail(&self.reader, row)? {
            return Ok(false);
        }
        self.line = line_of(row);
        // Some write the delimiter behind the last field, too, as TPC-H's generator does.
        let ends_so = row.len() == self.columns.len() + 1 && row.iter().next_back() == Some(b"");
        if ends_so {
            row.truncate(self.columns.len());
        }
        let (found, expected) = (row.len(), self.columns.len());
        if found != expected {
            bail!("line {}: there are {found} fields, and {expected} columns", self.line);
        }
        Ok(true)
    }

    fn place(&self) -> String {
        format!("line {}", self.line)
    }

    fn bytes(&self) -> u64 {
        self.reader.position().byte().min(self.reader.get_ref().bytes)
    }
}

fn line_of(row: &ByteRecord) -> u64 {
    row.position().map_or(0, Position::line)
}

/// What is read behind the file: a row that is its own, unless a quote is still open.
fn tail(delimiter: u8) -> &'static [u8] {
    if delimiter == b'.' { b"\n," } else { b"\n." }
}

/// Whether a row is that behind the file.
fn is_tail<R: Read>(reader: &Reader<Bounded<R>>, row: &ByteRecord) -> Result<bool> {
    // The end of its last line may be missing in the file.
    if reader.position().byte() <= reader.get_ref().bytes + 1 || !reader.get_ref().tail.is_empty() {
        return Ok(false);
    }
    if row.len() == 1 && matches!(&row[0], b"." | b",") {
        return Ok(true);
    }
    bail!("line {}: a quote of the row that begins there is never closed", line_of(row))
}

/// The reader repeats what a caller knows; this has what it does not.
fn told(error: csv::Error) -> anyhow::Error {
    match error.into_kind() {
        ErrorKind::Io(error) => error.into(),
        other => anyhow::anyhow!("{other:?}"),
    }
}

/// Ends a row that never ends: a quote that is not closed would make the reader keep all that
/// follows. Behind the file it has a row more, by which such a quote is seen at the end, too.
struct Bounded<R> {
    from: R,
    /// Bytes that may still be read for the row under way.
    left: u64,
    /// Bytes that the file has had so far.
    bytes: u64,
    /// What is still to be read behind it.
    tail: &'static [u8],
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(into)?;
        if read == 0 {
            return self.tail.read(into);
        }
        self.bytes += read as u64;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            std::io::Error::other(format!(
                "a row is longer than {} MiB: is there a quote that is not closed?",
                ROW_MAX >> 20
            ))
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, columns: Option<Vec<String>>) -> Result<Vec<(String, Vec<String>)>> {
        let mut rows = CsvRows::new(text.as_bytes(), b',', columns)?;
        let (mut row, mut all) = (ByteRecord::new(), Vec::new());
        while rows.read(&mut row)? {
            let fields = row.iter().map(|field| String::from_utf8_lossy(field).into_owned());
            all.push((rows.place(), fields.collect()));
        }
        assert_eq!(rows.bytes(), text.len() as u64);
        Ok(all)
    }

    #[test]
    fn rows_have_places() {
        let found = rows("a,b\n1,\"x\ny\"\n2,\"\"\"\"\n", None).unwrap();
        let expected = [("line 2", ["1", "x\ny"]), ("line 4", ["2", "\""])];
        for ((place, fields), (at, wanted)) in found.iter().zip(expected) {
            assert_eq!((place.as_str(), fields.as_slice()), (at, &wanted.map(String::from)[..]));
        }
        assert_eq!(found.len(), 2);
        let named = Some(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(rows("1,2\n3,4,\n", named).unwrap().len(), 2);
    }

    #[test]
    fn a_file_may_end_in_any_way() {
        for end in ["", "\n", "\r\n", "\r", "\n\n"] {
            for row in ["1,.", "1,\".\"", ".,"] {
                let found = rows(&format!("a,b\n{row}{end}"), None).unwrap();
                assert_eq!(found.len(), 1, "{row:?} {end:?}");
            }
            assert_eq!(rows(&format!("a\n.{end}"), None).unwrap().len(), 1, "{end:?}");
        }
    }

    #[test]
    fn what_is_no_table_is_refused_with_its_line() {
        let refused = |text: &str| rows(text, None).unwrap_err().to_string();
        assert!(refused("").contains("is empty"));
        assert_eq!(refused("a,b\n1,2\n3\n"), "line 3: there are 1 fields, and 2 columns");
        assert_eq!(refused("a,b\n1,2,3\n"), "line 2: there are 3 fields, and 2 columns");
        let open = "line 3: a quote of the row that begins there is never closed";
        for end in ["3,\"4", "3,\"4\n", "3,\"4\r\n5,6\r\n", "\"", "3,\"4\"\""] {
            assert_eq!(refused(&format!("a,b\n1,2\n{end}")), open, "{end:?}");
        }
        assert!(refused("a,\"b\n1,2\n").contains("never closed"));
        assert!(refused("a,b,a\n1,2,3\n").starts_with("the column `a` is named twice"));
        let endless = std::io::Cursor::new(b"a,b\n1,\"").chain(std::io::repeat(b'x'));
        let mut rows = CsvRows::new(endless, b',', None).unwrap();
        let error = rows.read(&mut ByteRecord::new()).unwrap_err().to_string();
        assert!(error.contains("a quote that is not closed"), "{error}");
    }
}
