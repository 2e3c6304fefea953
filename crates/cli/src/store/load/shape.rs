//! What key and value are made of, for each row of a file.

use anyhow::{Context, Result, anyhow, bail};
use csv::ByteRecord;
use remora_store::select::schema::Schema;

use super::super::key_name;

/// What stands between the parts of a key.
const JOIN: u8 = b':';

/// Which columns of a file make key and value.
#[derive(Debug)]
pub(super) struct Shape {
    key: Vec<usize>,
    value: Value,
}

#[derive(Debug)]
enum Value {
    /// A column, as it is.
    Plain(usize),
    /// A row of the schema, of these columns.
    Row(Schema, Vec<usize>),
}

impl Shape {
    /// For a file with these columns.
    pub(super) fn new(
        columns: &[String],
        keys: &[String],
        schema: Option<Schema>,
    ) -> Result<Shape> {
        let find = |name: &str| {
            let found = columns.iter().position(|column| column == name);
            found.with_context(|| {
                format!("there is no column `{name}`; there are: {}", columns.join(", "))
            })
        };
        let key: Vec<usize> = match keys {
            [] => {
                let names = [schema.as_ref().map_or(&[][..], Schema::columns), &[]].map(key_name);
                let place = |name| columns.iter().position(|column| column == name);
                vec![names.iter().find_map(place).unwrap_or(0)]
            }
            keys => keys.iter().map(|name| find(name)).collect::<Result<_>>()?,
        };
        let value = match schema {
            Some(schema) => {
                let places = schema.columns().iter().map(|column| find(&column.name));
                let places = places.collect::<Result<_>>()?;
                Value::Row(schema, places)
            }
            None => {
                let others: Vec<usize> =
                    (0..columns.len()).filter(|column| !key.contains(column)).collect();
                let [value] = others[..] else {
                    bail!(
                        "without --schema a value is one column, and {} are left beside the key",
                        others.len()
                    );
                };
                Value::Plain(value)
            }
        };
        Ok(Shape { key, value })
    }

    /// Makes key and value of a row that has a field for each column.
    pub(super) fn item(
        &self,
        row: &ByteRecord,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<()> {
        let field = |column: usize| row.get(column).unwrap_or_default();
        for (number, column) in self.key.iter().enumerate() {
            if number > 0 {
                key.push(JOIN);
            }
            key.extend_from_slice(field(*column));
        }
        if key.is_empty() {
            bail!("the key is empty");
        }
        match &self.value {
            Value::Plain(column) => value.extend_from_slice(field(*column)),
            Value::Row(schema, places) => {
                let mut texts = Vec::with_capacity(places.len());
                for (column, place) in schema.columns().iter().zip(places) {
                    let text = std::str::from_utf8(field(*place));
                    let wrong = |_| anyhow!("column `{}`: its text is not UTF-8", column.name);
                    texts.push(text.map_err(wrong)?);
                }
                schema.write_row(texts, value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(
        columns: &[&str],
        keys: &[&str],
        schema: Option<&str>,
        row: &[&str],
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let owned =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let schema = schema.map(|text| Schema::parse(text).unwrap());
        let shape = Shape::new(&owned(columns), &owned(keys), schema)?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        shape.item(&ByteRecord::from(row.to_vec()), &mut key, &mut value)?;
        Ok((key, value))
    }

    #[test]
    fn keys_and_values_are_made_of_columns() {
        let pair = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
        assert_eq!(item(&["k", "v"], &[], None, &["a", "b"]).unwrap(), pair(b"a", b"b"));
        assert_eq!(item(&["v", "key"], &[], None, &["a", "b"]).unwrap(), pair(b"b", b"a"));
        let columns = ["n", "part", "text"];
        let made = item(&columns, &["n", "part"], Some("text text"), &["7", "2", "x"]).unwrap();
        assert_eq!(made, pair(b"7:2", b"x"));
        let schema = Some("part u8\nn u16");
        assert_eq!(item(&columns, &[], schema, &["7", "2", ""]).unwrap(), pair(b"7", &[2, 7, 0]));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let told = |columns: &[&str], keys: &[&str], schema, row: &[&str]| {
            item(columns, keys, schema, row).unwrap_err().to_string()
        };
        assert!(told(&["a", "b", "c"], &[], None, &[]).contains("2 are left beside the key"));
        let missing = told(&["a", "b"], &["x"], None, &[]);
        assert_eq!(missing, "there is no column `x`; there are: a, b");
        assert!(told(&["a"], &[], Some("price u8"), &[]).contains("no column `price`"));
        assert_eq!(told(&["a", "b"], &[], None, &["", "x"]), "the key is empty");
        let wrong = told(&["a", "b"], &[], Some("b u8"), &["k", "256"]);
        assert!(wrong.contains("column `b`: `256`"), "{wrong}");
    }
}
