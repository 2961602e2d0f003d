//! Labelled samples from CSV records and JSON lines. Pure.

use csv::StringRecord;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::{LabelColumn, ReadingArgs};

/// A sample of numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The columns of the record other than the label, in order.
    pub numbers: Vec<f64>,
    /// The number of the class that is right, from 0.
    pub label: usize,
}

/// A question to a language model.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The messages of a chat.
    pub messages: Value,
    /// Each of these answers is right.
    pub answers: Vec<String>,
}

/// What is wrong with a line of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// Number of the line, from 1.
    pub line: u64,
    /// What is wrong, and what to do about it.
    pub reason: String,
}

/// Reads the records of a CSV file.
///
/// # Errors
/// The first record that is not a sample.
pub fn rows(text: &[u8], delimiter: u8, reading: &ReadingArgs) -> Result<Vec<Row>, Invalid> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(!reading.no_header)
        .delimiter(delimiter)
        .trim(csv::Trim::All)
        .from_reader(text);
    let header = if reading.no_header { None } else { reader.headers().ok().cloned() };
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| Invalid {
            line: error.position().map_or(0, csv::Position::line),
            reason: error.to_string(),
        })?;
        let line = record.position().map_or(0, csv::Position::line);
        let row = row(&record, header.as_ref(), reading);
        rows.push(row.map_err(|reason| Invalid { line, reason })?);
    }
    Ok(rows)
}

/// Whether the first record is probably a sample: all of its fields are numbers.
pub fn has_numeric_header(text: &[u8], delimiter: u8) -> bool {
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(text);
    let header = reader.headers();
    header.is_ok_and(|header| {
        !header.is_empty() && header.iter().all(|field| number(field).is_some())
    })
}

fn row(
    record: &StringRecord,
    header: Option<&StringRecord>,
    reading: &ReadingArgs,
) -> Result<Row, String> {
    let place = match &reading.label_column {
        LabelColumn::First => 0,
        LabelColumn::Last => record.len().saturating_sub(1),
        LabelColumn::Index(index) => *index,
        LabelColumn::Name(name) => {
            let mut names = header.ok_or("a named --label-column needs a header")?.iter();
            names.position(|field| field == name).ok_or_else(|| {
                format!("the header has no column {name:?}; choose another --label-column")
            })?
        }
    };
    let label = record.get(place).ok_or_else(|| {
        format!("the record has {} fields; choose another --label-column", record.len())
    })?;
    let mut numbers = Vec::with_capacity(record.len().saturating_sub(1));
    for (index, field) in record.iter().enumerate().filter(|(index, _)| *index != place) {
        numbers.push(number(field).ok_or_else(|| {
            format!("field {} is {field:?}, which is no number; --no-header and --label-column decide which fields are numbers", index + 1)
        })?);
    }
    Ok(Row { numbers, label: class(label, &reading.classes)? })
}

fn number(field: &str) -> Option<f64> {
    field.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

/// The class of a label: its place among the names, or its number.
fn class(label: &str, classes: &[String]) -> Result<usize, String> {
    if !classes.is_empty() {
        let place = classes.iter().position(|class| class == label);
        return place.ok_or_else(|| format!("the label {label:?} is not among --classes"));
    }
    let whole = number(label).filter(|number| number.fract() == 0.0 && (0.0..1e6).contains(number));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 to 1e6"
    )]
    let class = whole.map(|number| number as usize);
    class.ok_or_else(|| {
        format!("the label {label:?} is no class from 0; name the classes with --classes")
    })
}

/// A line of JSON lines.
#[derive(Deserialize)]
struct Line {
    question: Option<String>,
    messages: Option<Value>,
    answer: Option<String>,
    #[serde(default)]
    answers: Vec<String>,
}

/// Reads JSON lines: `question` or `messages`, and `answer` or `answers`.
///
/// # Errors
/// The first line that is not a sample.
pub fn questions(text: &str) -> Result<Vec<Question>, Invalid> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| question(line).map_err(|reason| Invalid { line: number, reason }))
        .collect()
}

fn question(line: &str) -> Result<Question, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let messages = match (line.question, line.messages) {
        (Some(question), None) => json!([{"role": "user", "content": question}]),
        (None, Some(messages)) if messages.is_array() => messages,
        _ => return Err("give either question, a text, or messages, a list".to_owned()),
    };
    let answers: Vec<String> = line.answer.into_iter().chain(line.answers).collect();
    if answers.is_empty() {
        return Err("there is no answer; add answer, or a list of answers".to_owned());
    }
    Ok(Question { messages, answers })
}

/// So many of the items, evenly spread.
pub fn spread<T>(items: Vec<T>, wanted: Option<u64>) -> Vec<T> {
    let total = items.len() as u64;
    let wanted = wanted.unwrap_or(total).min(total);
    // Of the items before and up to this one, the greatest share that was taken.
    let is_taken = |index: u64| (index + 1) * wanted / total > index * wanted / total;
    (0..).zip(items).filter(|(index, _)| is_taken(*index)).map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn reading(label_column: LabelColumn, no_header: bool) -> ReadingArgs {
        ReadingArgs {
            format: None,
            no_header,
            delimiter: ',',
            label_column,
            classes: Vec::new(),
            shape: Vec::new(),
            samples: None,
        }
    }

    #[test]
    fn label_is_found_in_any_column() {
        let expected = [Row { numbers: vec![1.5, -2.0], label: 7 }];
        for (text, column, no_header) in [
            ("a,b,class\n1.5,-2,7\n", LabelColumn::Last, false),
            ("7,1.5,-2\n", LabelColumn::First, true),
            ("1.5, 7.0 ,-2\n", LabelColumn::Index(1), true),
            ("a,class,b\n1.5,7,-2\n", LabelColumn::Name("class".to_owned()), false),
        ] {
            let parsed = rows(text.as_bytes(), b',', &reading(column, no_header)).unwrap();
            assert_eq!(parsed, expected, "{text}");
        }
        let mut named = reading(LabelColumn::Last, true);
        named.classes = ["cat", "dog"].map(str::to_owned).to_vec();
        assert_eq!(rows(b"1;dog\n", b';', &named).unwrap()[0].label, 1);
        assert!(has_numeric_header(b"1,2,3\n", b',') && !has_numeric_header(b"a,2\n", b','));
    }

    #[test]
    fn invalid_record_is_named_with_its_line_and_a_remedy() {
        for (text, column, line, reason) in [
            (
                "1,2\nx,3\n",
                LabelColumn::Last,
                2,
                "field 1 is \"x\", which is no number; --no-header",
            ),
            ("1,2.5\n", LabelColumn::Last, 1, "the label \"2.5\" is no class from 0; name the"),
            ("1,-1\n", LabelColumn::Last, 1, "the label \"-1\" is no class"),
            ("1,2\n", LabelColumn::Index(2), 1, "the record has 2 fields; choose another"),
            (
                "1,2\n",
                LabelColumn::Name("y".to_owned()),
                1,
                "a named --label-column needs a header",
            ),
            ("1,2\n1,2,3\n", LabelColumn::Last, 2, "found record with 3 fields"),
            ("nan,2\n", LabelColumn::Last, 1, "field 1 is \"nan\""),
        ] {
            let error = rows(text.as_bytes(), b',', &reading(column, true)).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.reason.contains(reason), "{text}: {}", error.reason);
        }
        let named = reading(LabelColumn::Name("y".to_owned()), false);
        let error = rows(b"a,b\n1,2\n", b',', &named).unwrap_err();
        assert!(error.reason.contains("the header has no column \"y\""), "{}", error.reason);
    }

    #[test]
    fn questions_have_one_or_several_answers() {
        let parsed = questions(
            "{\"question\":\"a?\",\"answers\":[\"b\",\"c\"]}\n\n{\"messages\":[{\"role\":\"system\"}],\"answer\":\"d\"}\n",
        )
        .unwrap();
        assert_eq!(parsed[0].messages, json!([{"role": "user", "content": "a?"}]));
        assert_eq!((parsed[0].answers.len(), &*parsed[1].answers[0]), (2, "d"));
        for (text, line, reason) in [
            ("{\"question\":\"a\"}", 1, "there is no answer"),
            ("\n{\"answer\":\"a\"}", 2, "give either question"),
            ("{\"question\":\"a\",\"messages\":[],\"answer\":\"a\"}", 1, "give either question"),
            ("x", 1, "expected value"),
        ] {
            let error = questions(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.reason.contains(reason), "{}", error.reason);
        }
    }

    #[test]
    fn subset_is_spread_evenly() {
        assert_eq!(spread((0..10).collect(), Some(3)), [3, 6, 9]);
        assert_eq!(spread((0..3).collect(), None), [0, 1, 2]);
        assert_eq!(spread((0..3).collect(), Some(9)), [0, 1, 2]);
        assert_eq!(spread(Vec::<u8>::new(), Some(1)), Vec::<u8>::new());
    }
}
