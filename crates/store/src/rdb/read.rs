//! Reading an RDB file.

use std::io::Read;

use super::source::Source;
use super::{NEWEST, OLDEST, RdbError, RdbReport, STRING, op, skip};
use crate::item::{KEY_MAX, VALUE_MAX};

/// A string of an RDB file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdbEntry<'a> {
    /// Its database.
    pub database: u64,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// When it expires, in milliseconds of Unix time.
    pub expires_ms: Option<u64>,
}

/// Reads the strings of an RDB file, one after another, in bounded memory.
pub struct RdbReader<R> {
    source: Source<R>,
    report: RdbReport,
    database: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    ended: bool,
}

impl<R: Read> RdbReader<R> {
    /// Reads the beginning of a file.
    ///
    /// # Errors
    ///
    /// [`RdbError`].
    pub fn new(reader: R) -> Result<RdbReader<R>, RdbError> {
        let mut source = Source::new(reader);
        let start: [u8; 9] = source.bytes().map_err(|error| match error {
            RdbError::Cut(_) => RdbError::Magic,
            error => error,
        })?;
        let digits = start.strip_prefix(b"REDIS").and_then(|digits| str::from_utf8(digits).ok());
        let version = digits.and_then(|digits| digits.parse().ok()).ok_or(RdbError::Magic)?;
        if !(OLDEST..=NEWEST).contains(&version) {
            return Err(RdbError::Version(version));
        }
        let report = RdbReport { version, ..RdbReport::default() };
        let (key, value) = (Vec::new(), Vec::new());
        Ok(RdbReader { source, report, database: 0, key, value, ended: false })
    }

    /// What was read so far; complete once [`RdbReader::next`] has answered `None`.
    #[must_use]
    pub fn report(&self) -> &RdbReport {
        &self.report
    }

    /// The next string; none at the end, where the checksum is right.
    ///
    /// # Errors
    ///
    /// [`RdbError`]; strings that were given before are not known to be right then, since the
    /// checksum is at the end.
    #[expect(clippy::should_implement_trait, reason = "what it answers borrows the reader")]
    pub fn next(&mut self) -> Result<Option<RdbEntry<'_>>, RdbError> {
        let mut expires_ms = None;
        while !self.ended {
            let at = self.source.at();
            match self.source.byte()? {
                op::EXPIRES_MS => {
                    expires_ms = Some(u64::from_le_bytes(self.source.bytes()?));
                }
                op::EXPIRES_SECONDS => {
                    let seconds = u32::from_le_bytes(self.source.bytes()?);
                    expires_ms = Some(u64::from(seconds) * 1000);
                }
                op::END => self.end()?,
                code @ op::SLOT_INFO.. => self.between(at, code)?,
                STRING => {
                    if self.string()? {
                        self.report.strings += 1;
                        let (database, key, value) = (self.database, &self.key, &self.value);
                        return Ok(Some(RdbEntry { database, key, value, expires_ms }));
                    }
                    self.report.too_long += 1;
                    expires_ms = None;
                }
                kind => {
                    let name = skip::name(kind).ok_or(RdbError::Type { at, kind })?;
                    self.source.skip_string()?;
                    skip::skip(&mut self.source, kind)?;
                    *self.report.skipped.entry(name).or_default() += 1;
                    expires_ms = None;
                }
            }
        }
        Ok(None)
    }

    /// Reads a key and its value; answers whether the store takes such.
    fn string(&mut self) -> Result<bool, RdbError> {
        let key = self.source.string(KEY_MAX, &mut self.key)?;
        let value = self.source.string(VALUE_MAX, &mut self.value)?;
        Ok(key && value)
    }

    /// What stands between keys.
    fn between(&mut self, at: u64, code: u8) -> Result<(), RdbError> {
        let source = &mut self.source;
        match code {
            op::DATABASE => self.database = source.length()?,
            op::RESIZE => {
                source.length()?;
                source.length()?;
            }
            op::AUX => {
                source.skip_string()?;
                source.skip_string()?;
            }
            op::FREQUENCY => _ = source.byte()?,
            op::IDLE => _ = source.length()?,
            op::FUNCTION => {
                source.skip_string()?;
                *self.report.skipped.entry("function").or_default() += 1;
            }
            op::SLOT_INFO => {
                for _ in 0..3 {
                    source.length()?;
                }
            }
            op::MODULE_AUX => {
                // The module, and when the file was being written: a kind and a number.
                for _ in 0..3 {
                    source.length()?;
                }
                skip::module(source)?;
            }
            kind => return Err(RdbError::Type { at, kind }),
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), RdbError> {
        let computed = self.source.checksum();
        let found = u64::from_le_bytes(self.source.bytes()?);
        if found != 0 && found != computed {
            return Err(RdbError::Checksum { found, computed });
        }
        self.report.checked = found != 0;
        self.ended = true;
        Ok(())
    }
}
