//! Changes of the store as records of the log, and back.

use super::{Fields, Fsync, Log, LogError, Operation, Position};
use crate::codec::Codec;
use crate::journal::{Journal, JournalError, Prepared, Record};
use crate::tablespace::{Eviction, TablespaceId, TablespaceOptions};

/// The length of a tablespace's options in bytes.
const OPTIONS: usize = 24;

impl Journal for Log {
    fn append(&self, record: &Record<'_>) -> Result<u64, JournalError> {
        number(with_fields(record, |fields| Log::append(self, fields)))
    }

    fn prepare(&self, record: &Record<'_>) -> Option<Prepared> {
        Some(with_fields(record, |fields| Log::prepare(self, fields)))
    }

    fn append_prepared(
        &self,
        record: &Record<'_>,
        prepared: Prepared,
    ) -> Result<u64, JournalError> {
        number(with_fields(record, |fields| Log::append_prepared(self, fields, prepared)))
    }

    fn holds_back(&self) -> bool {
        self.options().fsync == Fsync::Always
    }
}

fn number(appended: Result<Position, LogError>) -> Result<u64, JournalError> {
    appended.map(Position::number).map_err(|error| JournalError::Failed(error.to_string()))
}

/// Gives `then` the fields of a change's record.
pub(crate) fn with_fields<T>(record: &Record<'_>, then: impl FnOnce(&Fields<'_>) -> T) -> T {
    let mut options = [0; OPTIONS];
    then(&fields(record, &mut options))
}

/// A record's fields; `bytes` takes the options of a tablespace.
pub(crate) fn fields<'a>(record: &Record<'a>, bytes: &'a mut [u8; OPTIONS]) -> Fields<'a> {
    match *record {
        Record::Put { tablespace, key, stored, codec, flags, expires_ms } => Fields {
            operation: Operation::Put,
            goes_on: false,
            codec: codec.to_u16(),
            tablespace: tablespace.0,
            flags,
            expires_ms: expiry(expires_ms),
            key,
            value: stored,
        },
        Record::Touch { tablespace, key, expires_ms } => Fields {
            tablespace: tablespace.0,
            expires_ms: expiry(expires_ms),
            key,
            ..Fields::of(Operation::Touch)
        },
        Record::Delete { tablespace, key } => {
            Fields { tablespace: tablespace.0, key, ..Fields::of(Operation::Delete) }
        }
        Record::Create { tablespace, options } => {
            *bytes = options_bytes(options);
            Fields {
                tablespace: tablespace.0,
                key: options.name.as_bytes(),
                value: bytes,
                ..Fields::of(Operation::Create)
            }
        }
        Record::Drop { tablespace } => {
            Fields { tablespace: tablespace.0, ..Fields::of(Operation::Drop) }
        }
        Record::Flush { tablespace } => {
            Fields { tablespace: tablespace.0, ..Fields::of(Operation::Flush) }
        }
    }
}

/// In a record 0 is no expiry; what expires at the beginning of time expires a millisecond later.
fn expiry(expires_ms: Option<u64>) -> u64 {
    expires_ms.map_or(0, |ms| ms.max(1))
}

fn options_bytes(options: &TablespaceOptions) -> [u8; OPTIONS] {
    let mut bytes = [0; OPTIONS];
    bytes[..8].copy_from_slice(&options.quota.unwrap_or(u64::MAX).to_le_bytes());
    bytes[8..16].copy_from_slice(&options.default_expiry_ms.unwrap_or(0).to_le_bytes());
    bytes[16..18].copy_from_slice(&options.codec.to_u16().to_le_bytes());
    bytes[18] = match options.eviction {
        Eviction::Never => 0,
        Eviction::Clock => 1,
    };
    bytes
}

fn options(fields: &Fields<'_>) -> Result<TablespaceOptions, String> {
    let bytes: &[u8; OPTIONS] =
        fields.value.try_into().map_err(|_| "its options have another length".to_owned())?;
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(number)
    };
    let name = str::from_utf8(fields.key).map_err(|_| "its name is not UTF-8".to_owned())?;
    Ok(TablespaceOptions {
        name: name.to_owned(),
        quota: Some(number(0)).filter(|quota| *quota != u64::MAX),
        eviction: match bytes[18] {
            0 => Eviction::Never,
            1 => Eviction::Clock,
            other => return Err(format!("its eviction is {other}, which is none that is known")),
        },
        default_expiry_ms: Some(number(8)).filter(|ms| *ms > 0),
        codec: codec(number(16) as u16)?,
    })
}

fn codec(number: u16) -> Result<Codec, String> {
    let codec = Codec::from_u16(number).ok_or(format!("its codec is {number}, an unknown one"))?;
    if codec.is_available() {
        Ok(codec)
    } else {
        Err(format!("its values are stored as {codec:?}, which this program was built without"))
    }
}

/// Gives `then` the change that a record is.
///
/// # Errors
///
/// Why it is none, in words; else what `then` says.
pub(crate) fn with_record<T>(
    fields: &Fields<'_>,
    then: impl FnOnce(&Record<'_>) -> Result<T, String>,
) -> Result<T, String> {
    let tablespace = TablespaceId(fields.tablespace);
    let key = fields.key;
    let expires_ms = Some(fields.expires_ms).filter(|ms| *ms > 0);
    match fields.operation {
        Operation::Put => then(&Record::Put {
            tablespace,
            key,
            stored: fields.value,
            codec: codec(fields.codec)?,
            flags: fields.flags,
            expires_ms,
        }),
        Operation::Touch => then(&Record::Touch { tablespace, key, expires_ms }),
        Operation::Delete => then(&Record::Delete { tablespace, key }),
        Operation::Create => {
            let options = options(fields)?;
            then(&Record::Create { tablespace, options: &options })
        }
        Operation::Drop => then(&Record::Drop { tablespace }),
        Operation::Flush => then(&Record::Flush { tablespace }),
        Operation::Synced
        | Operation::End
        | Operation::Epoch
        | Operation::Request
        | Operation::Node
        | Operation::Done => Err("it is a mark, and not a change".to_owned()),
    }
}

/// What a snapshot says of an item, a tablespace or a flush.
pub(crate) fn add_record(
    record: &Record<'_>,
    position: Position,
    mut add: impl FnMut(Position, &Fields<'_>) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut options = [0; OPTIONS];
    add(position, &fields(record, &mut options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back(record: &Record<'_>) {
        let mut bytes = [0; OPTIONS];
        let fields = fields(record, &mut bytes);
        let same = with_record(&fields, |again| Ok(again == record));
        assert_eq!(same, Ok(true), "{record:?}");
    }

    #[test]
    fn every_change_comes_back() {
        let tablespace = TablespaceId(1023);
        let key = b"key";
        for expires_ms in [None, Some(1), Some(u64::MAX)] {
            for codec in [Codec::None, Codec::Lz4 { head: 12 }] {
                let (stored, flags) = (&b"value"[..], u32::MAX);
                comes_back(&Record::Put { tablespace, key, stored, codec, flags, expires_ms });
            }
            comes_back(&Record::Touch { tablespace, key, expires_ms });
        }
        comes_back(&Record::Delete { tablespace, key });
        comes_back(&Record::Drop { tablespace });
        comes_back(&Record::Flush { tablespace });
        let plain = TablespaceOptions::new("db0");
        let full = TablespaceOptions {
            name: "ümläut".to_owned(),
            quota: Some(0),
            eviction: Eviction::Clock,
            default_expiry_ms: Some(7),
            codec: Codec::Lz4 { head: 3 },
        };
        for options in [&plain, &full] {
            comes_back(&Record::Create { tablespace, options });
        }
    }

    #[test]
    fn what_is_no_change_is_refused_in_words() {
        let refused = |fields: &Fields<'_>| with_record(fields, |_| Ok(())).unwrap_err();
        assert!(refused(&Fields::synced()).contains("a mark"));
        let put = Fields { codec: u16::MAX, key: b"k", ..Fields::of(Operation::Put) };
        assert!(refused(&put).contains("codec"));
        let create = Fields { key: b"name", value: b"short", ..Fields::of(Operation::Create) };
        assert!(refused(&create).contains("length"));
        let mut options = options_bytes(&TablespaceOptions::new("x"));
        let create = Fields { key: b"\xff", value: &options, ..Fields::of(Operation::Create) };
        assert!(refused(&create).contains("UTF-8"));
        options[18] = 9;
        let create = Fields { key: b"x", value: &options, ..Fields::of(Operation::Create) };
        assert!(refused(&create).contains("eviction is 9"));
    }
}
