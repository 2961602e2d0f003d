{{/* Labels of every object. Selectors use only app.kubernetes.io/name. */}}
{{- define "neptune.labels" -}}
app.kubernetes.io/part-of: neptune
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* image (list . IMAGE): repository:tag, or repository@digest. */}}
{{- define "neptune.image" -}}
{{- $tag := (index . 1).tag | default (index . 0).Chart.AppVersion -}}
{{ (index . 1).repository }}{{ ternary "@" ":" (hasPrefix "sha256:" $tag) }}{{ $tag }}
{{- end }}

{{/* Affinity to cloud nodes: KubeEdge's edge nodes cannot reach the API server. */}}
{{- define "neptune.cloudNodes" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - {key: node-role.kubernetes.io/edge, operator: DoesNotExist}
          - {key: kubernetes.io/os, operator: In, values: [linux]}
{{- end }}

{{/* The security context of every container. */}}
{{- define "neptune.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* env MAP: the variables from the values, after those of the template. */}}
{{- define "neptune.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* nodePort SERVICE: the port at which nodes reach a Service of these values. */}}
{{- define "neptune.nodePort" -}}
{{ if and (eq .type "NodePort") .nodePort }}{{ .nodePort }}{{ else }}{{ .port }}{{ end }}
{{- end }}

{{/* brokerAddresses: join.address and the host of broker.url, separated by commas. */}}
{{- define "neptune.brokerAddresses" -}}
{{- $addresses := .Values.join.address }}
{{- with .Values.broker.url }}
{{- $addresses = append $addresses (trimSuffix "]" (trimPrefix "[" (urlParse .).hostname)) }}
{{- end }}
{{- join "," ($addresses | uniq) }}
{{- end }}
