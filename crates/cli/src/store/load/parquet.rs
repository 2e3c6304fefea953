//! Rows of Parquet. Each value becomes the text that CSV would have.

use std::fs::File;

use anyhow::{Result, bail};
use csv::ByteRecord;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::RowIter;

use super::Rows;

/// A file of Parquet.
pub(super) struct ParquetRows {
    rows: RowIter<'static>,
    columns: Vec<String>,
    count: u64,
    len: u64,
    read: u64,
}

impl ParquetRows {
    pub(super) fn new(file: File) -> Result<ParquetRows> {
        let len = file.metadata()?.len();
        let reader = SerializedFileReader::new(file)?;
        let about = reader.metadata().file_metadata();
        let fields = about.schema().get_fields();
        if let Some(nested) = fields.iter().find(|field| field.is_group()) {
            bail!("the column `{}` has columns of its own, which no row has", nested.name());
        }
        let columns = fields.iter().map(|field| field.name().to_owned()).collect();
        let count = u64::try_from(about.num_rows()).unwrap_or(0);
        Ok(ParquetRows { rows: reader.into_iter(), columns, count, len, read: 0 })
    }
}

impl Rows for ParquetRows {
    fn columns(&self) -> &[String] {
        &self.columns
    }

    fn read(&mut self, row: &mut ByteRecord) -> Result<bool> {
        let Some(next) = self.rows.next() else { return Ok(false) };
        self.read += 1;
        row.clear();
        for (name, field) in next?.get_column_iter() {
            match field {
                Field::Null => row.push_field(b""),
                Field::Str(text) => row.push_field(text.as_bytes()),
                Field::Bytes(bytes) => row.push_field(bytes.data()),
                Field::Group(_) | Field::ListInternal(_) | Field::MapInternal(_) => {
                    bail!("{}: the column `{name}` has columns of its own", self.place())
                }
                plain => row.push_field(plain.to_string().as_bytes()),
            }
        }
        Ok(true)
    }

    fn place(&self) -> String {
        format!("row {}", self.read)
    }

    /// The part of the file that so many rows are, about.
    fn bytes(&self) -> u64 {
        let all = u128::from(self.count.max(1));
        (u128::from(self.len) * u128::from(self.read) / all) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    const SCHEMA: &str = "message orders { required int32 id; required int32 day (DATE); \
                          required int32 price (DECIMAL(9, 2)); optional binary comment (UTF8); }";

    /// Writes three rows; the last has no comment.
    fn write(path: &std::path::Path, compression: Compression) {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let how = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let file = File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, how).unwrap();
        let mut group = writer.next_row_group().unwrap();
        for numbers in [[1, 2, 3], [8766, 0, -1], [1250, -5, 0]] {
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<Int32Type>().write_batch(&numbers, None, None).unwrap();
            column.close().unwrap();
        }
        let mut column = group.next_column().unwrap().unwrap();
        let texts = [ByteArray::from("plain"), ByteArray::from("a \"b\"")];
        column.typed::<ByteArrayType>().write_batch(&texts, Some(&[1, 1, 0]), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn rows_are_the_texts_that_csv_would_have() {
        let path = std::env::temp_dir().join(format!("remora-{}.parquet", std::process::id()));
        for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW] {
            write(&path, compression);
            let mut rows = ParquetRows::new(File::open(&path).unwrap()).unwrap();
            assert_eq!(rows.columns(), ["id", "day", "price", "comment"]);
            let (mut row, mut all) = (ByteRecord::new(), Vec::new());
            while rows.read(&mut row).unwrap() {
                let texts: Vec<_> = row.iter().map(String::from_utf8_lossy).collect();
                all.push(texts.join("|"));
            }
            let expected = ["1|1994-01-01|12.50|plain", "2|1970-01-01|-0.05|a \"b\""];
            assert_eq!(all[..2], expected);
            assert_eq!(all[2], "3|1969-12-31|0.00|");
            assert_eq!((rows.place().as_str(), rows.bytes()), ("row 3", rows.len));
        }
        std::fs::write(&path, b"PAR1 and no more of it").unwrap();
        assert!(ParquetRows::new(File::open(&path).unwrap()).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
