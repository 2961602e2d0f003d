//! Log lines as JSON: one flat object with the fields of the event and of its spans.
//!
//! `timestamp`, `level`, `target` and `message` are in each line, in this order. The first line of a
//! program has `program` and `version` as well. A field of the event hides one of the same name of a
//! span, and that of a span one of the spans around it.

use std::{
    error::Error,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, format::Writer},
    registry::{LookupSpan, Scope},
};

use crate::causes;

/// The names that each line has.
const MESSAGE: &str = "message";

/// Writes one object per event.
#[derive(Debug)]
pub(super) struct JsonLines {
    program: &'static str,
    /// Whether the first line is written.
    has_begun: AtomicBool,
}

/// Keeps the fields of a span as an object.
#[derive(Debug)]
pub(super) struct JsonFields;

/// The fields of an event or a span.
#[derive(Debug, Default)]
struct Fields(Map<String, Value>);

impl JsonLines {
    /// Returns a format whose first line names the program.
    pub(super) const fn new(program: &'static str) -> Self {
        Self { program, has_begun: AtomicBool::new(false) }
    }

    /// Writes a line with these fields.
    fn write(
        &self,
        writer: &mut Writer<'_>,
        time: Timestamp,
        event: &Event<'_>,
        mut fields: Map<String, Value>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let message = fields.remove(MESSAGE).unwrap_or_default();
        let message = message.as_str().unwrap_or_default();
        write!(
            writer,
            "{{\"timestamp\":\"{time:.3}\",\"level\":\"{}\",\"target\":{},\"message\":{}",
            metadata.level(),
            Value::from(metadata.target()),
            Value::from(message),
        )?;
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            let (program, version) = (Value::from(self.program), env!("CARGO_PKG_VERSION"));
            write!(writer, ",\"program\":{program},\"version\":\"{version}\"")?;
        }
        for (name, value) in fields {
            write!(writer, ",{}:{value}", Value::from(name))?;
        }
        writeln!(writer, "}}")
    }
}

impl<S> FormatEvent<S, JsonFields> for JsonLines
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Map::new();
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            if let Some(formatted) = span.extensions().get::<FormattedFields<JsonFields>>() {
                fields.extend(parsed(&formatted.fields));
            }
        }
        let mut own = Fields::default();
        event.record(&mut own);
        fields.extend(own.0);
        self.write(&mut writer, Timestamp::now(), event, fields)
    }
}

impl<'writer> FormatFields<'writer> for JsonFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, from: R) -> fmt::Result {
        let mut fields = Fields::default();
        from.record(&mut fields);
        write!(writer, "{}", Value::Object(fields.0))
    }

    fn add_fields(
        &self,
        current: &'writer mut FormattedFields<Self>,
        from: &tracing::span::Record<'_>,
    ) -> fmt::Result {
        let mut fields = Fields(parsed(&current.fields));
        from.record(&mut fields);
        current.fields = Value::Object(fields.0).to_string();
        Ok(())
    }
}

/// The fields of a span, as [`JsonFields`] wrote them.
fn parsed(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.set(field, causes(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use serde_json::json;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that `log` writes.
    fn logged(log: impl FnOnce()) -> Vec<String> {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(JsonFields)
            .event_format(JsonLines::new("neptune-test"))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn line_is_one_flat_object_with_the_fields_of_its_spans() {
        let lines = logged(|| {
            let node = tracing::info_span!(
                "turn",
                node = "edge0",
                revision = 1,
                late = tracing::field::Empty
            );
            let _node = node.enter();
            let _kind = tracing::info_span!("reconcile", kind = "model", revision = 2).entered();
            node.record("late", true);
            tracing::warn!(name = "a\"b", revision = 3, error = %"it\nfailed", share = 0.5, "not \"good\"");
        });
        let value: Value = serde_json::from_str(&lines[0]).unwrap();
        let Value::Object(mut line) = value else { panic!("not an object: {lines:?}") };
        let time = line.remove("timestamp").unwrap();
        let time = time.as_str().unwrap();
        assert!(time.ends_with('Z') && time.len() == "2026-01-02T03:04:05.678Z".len(), "{time}");
        assert!(time.parse::<Timestamp>().is_ok(), "{time}");
        assert_eq!(
            Value::Object(line),
            json!({
                "level": "WARN", "target": "neptune_program::logs::json::tests",
                "message": "not \"good\"", "program": "neptune-test",
                "version": env!("CARGO_PKG_VERSION"), "node": "edge0", "kind": "model",
                "revision": 3, "late": true, "name": "a\"b", "error": "it\nfailed", "share": 0.5,
            })
        );
        assert_eq!(lines.len(), 1, "a line break in a value is escaped: {lines:?}");
    }

    #[test]
    fn only_the_first_line_names_the_program() {
        let lines = logged(|| {
            tracing::info!("one");
            tracing::info!(count = 2_u64);
        });
        assert!(lines[0].contains(r#""message":"one","program":"neptune-test","version":"#));
        assert!(lines[1].ends_with(r#""message":"","count":2}"#), "{lines:?}");
    }

    #[test]
    fn error_is_the_text_of_its_causes() {
        #[derive(Debug)]
        struct Call(io::Error);
        impl fmt::Display for Call {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("error for url (http://user:secret@cloud)")
            }
        }
        impl Error for Call {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let lines = logged(|| {
            let error = Call(io::Error::other("connection reset"));
            tracing::warn!(error = &error as &(dyn Error + 'static), "failed");
        });
        assert!(lines[0].contains(r#""error":"connection reset""#), "{lines:?}");
    }
}
