module aenv/envd

go 1.27
